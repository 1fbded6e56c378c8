"""Options of blocks: what is refused, and the reference of the command line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from returnn_tf import blocks
from returnn_tf.blocks.block import options_of
from returnn_tf.cli.main import main
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("blstm", {"layer": 3}, r"blocks.blstm\('enc'\): unknown option 'layer'. Did you mean 'layers'"),
        ("blstm", {"layers": "3"}, "option 'layers' must be a whole number, got '3'.*their number"),
        ("blstm", {"layers": 0}, "option 'layers' must be at least 1, got 0"),
        ("blstm", {"dropout": 1.0}, "option 'dropout' must be from 0 to below 1"),
        ("blstm", {"pooling": (2, 0)}, r"pooling must hold numbers of at least 1, got \(2, 0\)"),
        ("conformer", {"dim": 100}, r"blocks.conformer\('enc'\): dim is 100, which is not divisible by heads 8"),
        ("conformer", {"norm": "group_norm"}, "norm is 'group_norm'. It is batch_norm or layer_norm"),
        ("conformer", {"ff_dim": 0}, "option 'ff_dim' must be at least 1, got 0"),
        ("conformer", {"max_distance": 0}, "option 'max_distance' must be at least 1, got 0"),
        ("transformer_encoder", {"ff_dim": 0}, "option 'ff_dim' must be at least 1, got 0"),
        ("vgg", {"channels": (32,)}, "channels has 1 entries, reduce has 2"),
        ("vgg", {"reduce": ((2, 2), 2)}, "option 'reduce' must be"),
        ("vgg", {"channels": (0, 3)}, "numbers of at least 1"),
        ("ctc", {}, "option 'source' is missing. It is: layer with a vector for each frame"),
        ("ctc", {"source": "enc", "scale": -1}, "option 'scale' must be at least 0"),
        ("transformer_decoder", {"encoder": "enc"}, "option 'num_labels' is missing"),
        ("transformer_decoder", {"encoder": "e", "num_labels": 5, "end": 5}, "end is 5, but the labels are 0 to 4"),
        ("attention_decoder", {"encoder": "e", "num_labels": 5, "append_end": False}, "end must be the label"),
        ("attention_decoder", {"encoder": "e", "num_labels": 5, "dim": 3}, "the maxout takes pairs"),
        ("attention_decoder", {"encoder": "e", "num_labels": 5, "max_len": 3}, "option 'max_len' must be"),
        ("transformer_decoder", {"encoder": "e", "num_labels": 5, "max_len": (-1, 9)}, r"at least 0, .* got \(-1, 9\)"),
        (
            "attention_decoder",
            {"encoder": "e", "num_labels": 5, "max_len": [0, 0]},
            r"one of them above 0, got \(0, 0\)",
        ),
        (
            "lstm_language_model",
            {"source": "data"},
            r"language_model\('enc'\): give either target, to train it, or num_lab",
        ),
        ("transformer_language_model", {"source": "data", "target": "t", "num_labels": 5}, "give either target, .* or"),
        (
            "transformer_language_model",
            {"source": "d", "num_labels": 5, "heads": 3},
            "512, which is not divisible by h",
        ),
    ],
    ids=str,
)
def test_mistakes(name: str, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        getattr(blocks, name)("enc", **options)


@pytest.mark.parametrize("labels", [11, 13])
@pytest.mark.parametrize("name, options", [
    ("attention_decoder", {}), ("attention_decoder", {"end": 0, "append_end": False}), ("transducer", {}),
    ("transformer_decoder", {"end": 0}), ("transformer_decoder", {"end": 3, "append_end": False}),
], ids=str)  # fmt: skip
def test_another_number_of_labels_than_the_target(name: str, options: Any, labels: int) -> None:
    """The plan is refused: the labels that a block counts are those of its target."""
    front = {"enc": {"class": "copy", "from": "data"}}
    extern_data = {"data": {"dim": 8}, "classes": {"dim": 12, "sparse": True}}
    settings = {"extern_data": extern_data, "behavior_version": 21}

    def planned(num_labels: int) -> None:
        net = getattr(blocks, name)("output", encoder="enc", num_labels=num_labels, **options)
        plan_from_config(Config({**settings, "network": {**front, **net}}), train=True)

    planned(12)
    message = r"num_labels of blocks.%s\('output'\) for target 'classes' is %d, but the source has 12 labels. Give 12."
    with pytest.raises(ConfigError, match=message % (name, labels)):
        planned(labels)


@pytest.mark.parametrize("args", [(), (3,), ("",), ("a/b",), ("data:x",), ("enc", "data"), ({},)], ids=str)
def test_the_name_comes_first_and_alone(args: Any) -> None:
    with pytest.raises(ConfigError, match="the first argument is the name of the output"):
        blocks.blstm(*args)


def test_all_are_exported_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    names = {name for name, _ in blocks.BLOCKS.items()}
    assert names == {*blocks.__all__} - {"BLOCKS"}
    for name, function in blocks.BLOCKS.items():
        assert all(info.help for info in options_of(function).values())
        assert main(["blocks", name]) == 0
        out = capsys.readouterr().out
        assert all("  %s: " % option in out for option in options_of(function)) and ":param" not in out
    assert main(["blocks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == names
    assert main(["blocks", "conformr"]) == 2
    assert "unknown block 'conformr'. Did you mean 'conformer'?" in capsys.readouterr().err


def test_no_tensorflow_is_imported() -> None:
    made = "from returnn_tf import blocks; blocks.conformer('enc')"
    code = "import sys; %s; assert not {'tensorflow', 'numpy'} & {*sys.modules}" % made
    subprocess.run([sys.executable, "-c", code], check=True)
