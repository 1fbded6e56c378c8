"""``--check``: error rates of an export on a dataset beside those of the network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.cli.export import run
from returnn_tf.config import ConfigError, DataError
from returnn_tf.export.error_rates import ErrorCheck
from returnn_tf.export.exporters import Exporter
from returnn_tf.logging.log import log

LABELS, WIDTH, SEQS = 128, 140, 7
BLANK = LABELS - 1
FRAMES = {"output": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}}
CTC = {"output": {"class": "softmax", "from": "data", "n_out": LABELS, "loss": "ctc", "target": "classes"}}
GREEDY = {
    "prob": {"class": "softmax", "from": "data", "n_out": LABELS},
    "output": {"class": "ctc_greedy", "from": "prob", "target": "classes"},
}
SEARCH = {
    "output": {"class": "rec", "from": "data", "unit": {
        "prob": {"class": "softmax", "from": ["data:source"], "n_out": LABELS},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "prob", "initial_output": 0},
    }},
}  # fmt: skip


def _dataset(*, ctc: bool = False) -> tuple[dict[str, Any], int, int]:
    """Return a dataset whose inputs tell the labels, but for one in each sequence, the errors and the labels."""
    rng, data, count = np.random.RandomState(1), [], 0
    for length in range(3, 3 + SEQS):
        labels = rng.permutation(BLANK)[:length].astype("int32")
        frames = np.repeat(labels, 2) if ctc else labels
        if ctc:
            frames = np.concatenate([frames, [BLANK]])
        seen = np.zeros((len(frames), WIDTH), "float32")
        seen[np.arange(len(frames)), frames] = 1.0
        wrong = labels.copy()
        wrong[0] = BLANK - 1 if labels[0] != BLANK - 1 else 0
        data.append({"data": seen, "classes": wrong})
        count += length
    return {"class": "StaticDataset", "data": data}, SEQS, count


def _network(network: dict[str, Any], *, outlier: float = 0.0, search: bool = False) -> returnn_tf.Network:
    dataset, _, _ = _dataset(ctc=network in (CTC, GREEDY))
    labels = BLANK if network in (CTC, GREEDY) else LABELS
    given = {
        "network": network,
        "extern_data": {"data": {"dim": WIDTH}, "classes": {"dim": labels, "sparse": True}},
        "behavior_version": 21,
        "dev": dataset,
    }
    net = returnn_tf.Network.from_config(returnn_tf.Config(given), search=search)
    for name, param in net.params.items():
        if name.endswith("W"):
            weights = np.eye(WIDTH, LABELS) * 20.0
            weights[-1] = outlier  # of a feature that is always 0; the others are 0 beside it
            net.set_param_values({name: weights})
        else:
            net.set_param_values({name: np.zeros(param.shape)})
    return net


@pytest.fixture
def lines(monkeypatch):
    """Return the lines of the log; what is written is not run, as other tests do that."""
    found: list[str] = []
    monkeypatch.setattr(log, "write", lambda level, text: found.append(text) if level == 1 else None)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, kind, search",
    [(FRAMES, "frame", False), (CTC, "label", False), (GREEDY, "label", False), (SEARCH, "label", True)],
    ids=["frames", "ctc", "ctc_greedy", "search"],
)
def test_counts(tmp_path, lines, network, kind, search):
    """Errors of posteriors by frame, of the best path of CTC, and of labels, also of the best hypothesis of a beam."""
    net = _network(network, search=search)
    returnn_tf.export(net, str(tmp_path / "out"), to="frozen", quantize="int8", check=ErrorCheck("dev"))
    _, errors, labels = _dataset(ctc=network in (CTC, GREEDY))
    both = "%.2f%% (%d of %d: %d substitutions, 0 deletions, 0 insertions)" % (
        100 * errors / labels, errors, labels, errors,
    )  # fmt: skip
    assert lines == ["output, %s errors in 'dev': %s in the network; %s in the export" % (kind, both, both)]
    assert os.path.exists(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "tflite"])
def test_other_targets(tmp_path, lines, to):
    """One sequence at a time where the target needs it; the number of sequences is limited."""
    returnn_tf.export(_network(FRAMES), str(tmp_path / "out"), to=to, check=ErrorCheck("dev", sequences=3))
    assert len(lines) == 1 and "(3 of 12: 3 " in lines[0]


@pytest.mark.slow
def test_too_many_errors(tmp_path, lines):
    """Of weights that are 0 beside much larger ones; without these layers, or if more is allowed, it is written."""
    net = _network(FRAMES, outlier=1e6)
    with pytest.raises(DataError, match="export --check: output, frame errors .* more than a share of 0.02") as info:
        returnn_tf.export(net, str(tmp_path / "out"), to="frozen", quantize="int8", check=ErrorCheck("dev"))
    assert "--exclude" in str(info.value) and not lines and not os.listdir(tmp_path)
    returnn_tf.export(net, str(tmp_path / "out"), to="frozen", quantize="int8", check=ErrorCheck("dev", most=1e3))
    assert len(lines) == 1


@pytest.mark.parametrize(
    "network, options, text",
    [
        (FRAMES, {"check": ErrorCheck("test")}, "has no dataset 'test'"),
        ({"output": {"class": "linear", "activation": None, "n_out": 3, "from": "data"}}, {}, "no output has labels"),
        ({**FRAMES, "h": {"class": "rec", "unit": "gru", "n_out": 3, "from": "data", "is_output_layer": True}},
         {"state": True}, "an export of blocks or steps has no error rate"),
    ],
    ids=["no dataset", "no labels", "blocks"],
)  # fmt: skip
def test_mistakes(tmp_path, monkeypatch, network, options, text):
    monkeypatch.setattr(Exporter, "check", lambda *_: None)
    given = {"extern_data": {"data": {"dim": 5}, "classes": {"dim": 3, "sparse": True}}, "network": network}
    net = returnn_tf.Network.from_config(returnn_tf.Config({**given, "behavior_version": 21}))
    with pytest.raises(ConfigError, match=text):
        returnn_tf.export(net, str(tmp_path / "out"), portable=True, **{"check": ErrorCheck("dev"), **options})


def test_no_floats_to_compare_with(tmp_path):
    config = {"extern_data": {"data": {"dim": 140}}, "quantize": "int8", "behavior_version": 21}
    net = returnn_tf.Network.from_config(
        returnn_tf.Config({**config, "network": {"output": {"class": "softmax", "n_out": 128, "from": "data"}}})
    )
    with pytest.raises(ConfigError, match="check has no floats to compare with, as the setting quantize"):
        returnn_tf.export(net, str(tmp_path / "out"), check=ErrorCheck("dev"))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("value", ["-1", "nan", "much"])
def test_wrong_share(tmp_path: Path, value: str) -> None:
    (tmp_path / "my.config").write_text("network = {}\n")
    with pytest.raises(ConfigError, match="--max-loss: expected a number such as 0.02, not '%s'" % value):
        run([str(tmp_path / "my.config"), "--output", str(tmp_path / "out"), "--max-loss=" + value])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"frames": 12, "batch": 2}], ids=["any length", "fixed sizes"])
def test_tflite_by_calibration(tmp_path, lines, options):
    """The ranges of activations are those of the dataset; the errors are those of the network."""
    tflite = {"to": "tflite", "quantize": "int8", "calibrate": "dev", "calibrate_seqs": 3, **options}
    returnn_tf.export(_network(FRAMES), str(tmp_path / "int8"), check=ErrorCheck("dev"), **tflite)
    returnn_tf.export(_network(FRAMES), str(tmp_path / "float"), to="tflite", **options)
    small, large = (os.path.getsize(str(tmp_path / name / "model.tflite")) for name in ("int8", "float"))
    assert len(lines) == 1 and large - small > 2.5 * LABELS * WIDTH


@pytest.mark.slow
@pytest.mark.parametrize("options, text", [
    ({"quantize": "int8"}, "int8 needs calibrate"),
    ({"quantize": "float16", "calibrate": "dev"}, "only int8 needs it"),
    ({"quantize": "int8", "calibrate": "dve"}, "no dataset 'dve'. Did you mean 'dev'"),
    ({"quantize": "int8", "calibrate": "dev", "frames": 5}, "a sequence of 6 frames, but the export takes 5"),
])  # fmt: skip
def test_mistakes_in_calibration(tmp_path, options, text):
    with pytest.raises(ConfigError, match=text):
        returnn_tf.export(_network(FRAMES), str(tmp_path / "out"), to="tflite", **options)
    assert not os.listdir(tmp_path)
