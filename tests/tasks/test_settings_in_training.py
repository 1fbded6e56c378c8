"""What single settings do in a run: those which had a help text, and no effect."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings.training import DEFAULT_SEED
from returnn_tf.datasets import batch_options_from_config, dataset_from_config
from returnn_tf.engine.training.engine import Engine

SETTINGS: dict[str, Any] = {
    "train": {"class": "Task12AXDataset", "num_seqs": 12},
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
    "batch_size": 300,
    "num_epochs": 1,
}
TEXT = "".join("%s = %r\n" % item for item in SETTINGS.items())


def run(folder: pathlib.Path, text: str) -> int:
    path = folder / "my.config"
    path.write_text(TEXT + text)
    return main([str(path)])


def weights(**settings: Any) -> np.ndarray:
    net = Network.from_config(Config({**SETTINGS, **settings}), train=True)
    return net.get_param_values()["output/W"]


def test_seed_of_zero() -> None:
    """0 is no other way to write the default."""
    assert not np.array_equal(weights(random_seed=0), weights())
    np.testing.assert_array_equal(weights(random_seed=DEFAULT_SEED), weights())
    with Engine(Config({**SETTINGS, "random_seed": 0})) as engine:
        np.testing.assert_array_equal(engine.net.get_param_values()["output/W"], weights(random_seed=0))
        assert engine.net.noise_seed == 0
    with pytest.raises(ConfigError, match="'random_seed' must be from 0"):
        weights(random_seed=-1)


@pytest.mark.parametrize("limit, expected", [(None, 12), (-1, 12), (0, 12), (3, 4), (20, 12)])
def test_max_total_num_seqs(limit: Any, expected: int) -> None:
    """The training epoch ends one sequence after the limit, as elsewhere; other datasets are read whole."""
    config = Config({**SETTINGS, "dev": SETTINGS["train"], "max_total_num_seqs": limit})
    for name, wanted in (("train", expected), ("dev", 12)):
        dataset = dataset_from_config(config, name)
        assert dataset is not None
        options = batch_options_from_config(config, train=name == "train")
        assert sum(batch.num_seqs for batch in dataset.batches(1, **options)) == wanted


@pytest.mark.slow
def test_lines_of_the_log(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory in the lines of the steps, the dims of each layer, and what has no effect."""
    text = (
        "tf_log_memory_usage = True\nlog_verbosity = [5]\ndebug_print_layer_output_template = True\npatch_atfork = 1\n"
    )
    assert run(tmp_path, text) == 0
    out = capsys.readouterr().out
    assert re.search(r", mem_usage:process [\d.]+[MG]B", out)
    assert "layer output (softmax): [" in out
    assert out.count("Settings without effect: patch_atfork (") == 1
    assert run(tmp_path, "log_verbosity = [5]\n") == 0
    out = capsys.readouterr().out
    assert "mem_usage" not in out and "layer output (" not in out and "without effect" not in out


@pytest.mark.parametrize(
    "text, message",
    [
        ("use_last_best_model = {'modul': 2}", "unknown option 'modul'. Did you mean 'modulo'?"),
        ("reset_updater_vars_mod_step = -3", "must be at least 0, got -3"),
        ("optimize_move_layers_out = False", "is not supported: set 'optimize_move_layers_out'"),
        ("forward_callback = 3", "must be an object with the methods init, process_seq and finish"),
        ("profile = {'step': 3}", "unknown option 'step'. Did you mean 'steps'?"),
        ("start_batch = 3", "is 3. Known: "),
        ("save_interval = 'often'", "expected a whole number, got 'often'"),
        ("cleanup_old_models = True\nsave_every_minutes = -1", "must be at least 0, got -1"),
    ],
)
def test_found_before_the_training(
    text: str, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the place, also by ``returnn-tf check``."""
    assert run(tmp_path, text) == 2
    first = capsys.readouterr()
    assert message in first.err and "my.config:" in first.err and "epoch 1" not in first.out
    assert main(["check", str(tmp_path / "my.config")]) == 2
    assert message in capsys.readouterr().err
