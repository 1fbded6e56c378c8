"""The table and the picture of a plan, made without TensorFlow."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from returnn_tf.compiler.describe import describe_config
from returnn_tf.config import Config, ConfigError

NETWORK: dict[str, Any] = {
    "pool": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"},
    "sub": {"class": "subnetwork", "from": "pool", "subnetwork": {
        "h": {"class": "linear", "activation": "relu", "n_out": 5, "from": "data", "trainable": False},
        "output": {"class": "copy", "from": ["h", "data"]}}},
    "loop": {"class": "rec", "from": "sub", "unit": {
        "x": {"class": "linear", "activation": None, "n_out": 3, "from": "data:source"},
        "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["x", "prev:output"]}}},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "loop", "loss_scale": 0.5},
}  # fmt: skip
EXTERN = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
CONFIG = Config({"behavior_version": 21, "extern_data": EXTERN, "network": NETWORK})


def test_table() -> None:
    lines = describe_config(CONFIG).splitlines()
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    assert rows["pool"].endswith("time -> ceil(time/2)")
    assert rows["sub/h"].endswith("25 (frozen)") and "F|5]" in rows["sub/h"]
    assert "loop/output" in rows and "loop/x" in rows, "layers in the loop are shown too"
    assert "    output: output <- prev:output" in lines
    assert "  before the loop: x" in lines
    assert "loss ce on output, target data:classes, scale 0.5" in lines
    assert any(line.startswith("8 layers, ") and "trainable" in line for line in lines)
    assert "\x1b[" not in "".join(lines) and "\x1b[" in describe_config(CONFIG, color=True)


def test_picture(tmp_path: Path) -> None:
    path = tmp_path / "net.svg"
    assert str(path) in describe_config(CONFIG, graph=str(path))
    texts = [e.text for e in xml.etree.ElementTree.parse(path).iter() if e.tag.endswith("text")]
    assert "loop (rec)" in texts and "sub (subnetwork)" in texts and texts.count("output") == 3


@pytest.mark.parametrize("name, message", [("net.png", "name the file"), ("missing/net.svg", "does not exist")])
def test_picture_errors(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_config(CONFIG, graph=str(tmp_path / name))


def test_task_search_is_planned_for_search():
    unit = {"h%d" % i: {"class": "linear", "n_out": 3, "from": "h%d" % (i - 1)} for i in range(1, 10)}
    unit["h0"] = {"class": "linear", "n_out": 3, "from": "prev:output"}
    unit["prob"] = {"class": "softmax", "from": "h9", "target": "classes", "loss": "ce"}
    unit["output"] = {"class": "choice", "from": "prob", "target": "classes", "beam_size": 2, "initial_output": 0}
    unit["end"] = {"class": "compare", "from": "output", "value": 0}
    config = {
        "extern_data": {"classes": {"dim": 4, "sparse": True}},
        "network": {"output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": unit}},
    }
    assert "in the loop" not in describe_config(Config(config)), "in training all of it is computed at once"
    text = describe_config(Config({**config, "task": "search"}))
    assert "  in the loop:" in text
    assert "    h5: h5 <- h4 <- ... <- h0 <- prev:output <- prob <- ... <- h5\n" in text, "long chains are shortened"
