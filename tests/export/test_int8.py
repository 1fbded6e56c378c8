"""Exports with matrices of int8: by the option and by the setting, for all targets whose graphs have our ops."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError, DataError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.export.export import make_exporter
from returnn_tf.export.saved_model.loader import load
from returnn_tf.export.side_file import read_side_file

WIDTH, LABELS = 192, 200
EXTERN_DATA = {"data": {"dim": WIDTH}, "classes": {"dim": LABELS, "sparse": True}}
TAGGER = {
    "h": {"class": "linear", "activation": "relu", "n_out": WIDTH, "from": "data"},
    "output": {"class": "softmax", "n_out": LABELS, "from": "h"},
}
CELL = {"class": "linear", "activation": "tanh", "n_out": WIDTH, "from": ["data:source", "prev:output"]}
STREAM = {**TAGGER, "h": {"class": "rec", "from": "data", "unit": {"output": CELL}}}
DECODER = {
    "enc": {"class": "linear", "activation": "tanh", "n_out": WIDTH, "from": "data"},
    "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "enc"},
    "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": {
        "embed": {"class": "linear", "activation": None, "n_out": WIDTH, "from": "prev:output", "initial_output": 0},
        "h": {"class": "linear", "activation": "tanh", "n_out": WIDTH, "from": ["embed", "prev:h", "base:mean"]},
        "prob": {"class": "softmax", "n_out": LABELS, "from": "h"},
        "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "prob", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
    }},
    "decision": {"class": "decide", "from": "output", "is_output_layer": True},
}  # fmt: skip

CELLS = {
    **DECODER,
    "enc": {"class": "rec", "unit": "lstm", "n_out": WIDTH, "from": "data"},
    "output": {**DECODER["output"], "unit": {
        **DECODER["output"]["unit"],
        "h": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": WIDTH, "from": ["embed", "base:mean"]},
    }},
}  # fmt: skip
MATRICES = ("/W", "/W_re", "/kernel")


def _network(layers: dict[str, Any], *, search: bool = False, **settings: Any) -> returnn_tf.Network:
    given = {"network": layers, "extern_data": EXTERN_DATA, "behavior_version": 21, **settings}
    net = returnn_tf.Network.from_config(returnn_tf.Config(given), search=search)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(0, 0.1, p.shape) for name, p in sorted(net.params.items())})
    return net


def _size(folder: str) -> int:
    """Return the bytes of all files but the libraries."""
    return sum(
        os.path.getsize(os.path.join(root, name))
        for root, _, files in os.walk(folder)
        for name in files
        if "native" not in root
    )


@pytest.fixture(scope="module")
def size_with_floats(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, returnn_tf.Network], int]:
    """Return a function that gives the bytes of an export to a target, which is made once for all tests."""
    sizes: dict[tuple[str, tuple[str, ...]], int] = {}

    def size(to: str, net: returnn_tf.Network) -> int:
        key = to, tuple(sorted(net.params))
        if key not in sizes:
            folder = str(tmp_path_factory.mktemp("float") / "out")
            returnn_tf.export(net, folder, to=to)
            sizes[key] = _size(folder)
        return sizes[key]

    return size


@pytest.mark.slow
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("to, layers", [
    ("saved_model", TAGGER), ("frozen", TAGGER), ("meta", TAGGER), ("saved_model", CELLS), ("steps", CELLS),
    *(pytest.param(to, DECODER, marks=pytest.mark.long) for to in ("saved_model", "steps")),  # CELLS has all of it
])  # fmt: skip
def test_targets(tmp_path, size_with_floats, to, layers, portable):
    """What is written computes what the network with int8 does, which the export checks, and takes little space."""
    net = _network(layers, search="decision" in layers)
    if portable and net.search and to == "saved_model":
        pytest.skip("labels of equal scores may differ between the ops of TensorFlow and ours")
    returnn_tf.export(net, str(tmp_path / "int8"), to=to, portable=portable, quantize="int8")
    facts = read_side_file(str(tmp_path / "int8"))
    assert facts["int8"] == sorted(name for name in net.params if name.endswith(MATRICES))
    assert any("int8" in path for path in facts["native"]["libraries"]) == (not portable)
    assert _size(str(tmp_path / "int8")) - size_with_floats(to, net) < -2.6 * sum(
        int(np.prod(p.shape)) for name, p in net.params.items() if name.endswith(MATRICES)
    )


@pytest.mark.slow
@pytest.mark.parametrize("to, layers", [("saved_model", TAGGER), ("meta", TAGGER), ("steps", CELLS)])
def test_bfloat16(tmp_path, to, layers):
    net = _network(layers, search="decision" in layers)
    returnn_tf.export(
        net, str(tmp_path / "out"), to=to, quantize="bfloat16", exclude=["enc*"] if layers is CELLS else []
    )
    facts = read_side_file(str(tmp_path / "out"))
    assert facts["bfloat16"] == sorted(
        name for name in net.params if name.endswith(MATRICES) and not name.startswith("enc")
    )
    assert "int8" not in facts and any("bfloat16" in path for path in facts["native"]["libraries"])


@pytest.mark.slow
def test_checkpoint_of_a_meta_graph(tmp_path):
    """It has numbers and scales, not the floats."""
    returnn_tf.export(_network(TAGGER), str(tmp_path / "out"), to="meta", quantize="int8", exclude=["output"])
    values = checkpoint.read(str(tmp_path / "out" / "graph"))
    assert values["h/W/int8"].dtype == np.uint8 and values["h/W/scales"].shape == (WIDTH,) and "h/W" not in values
    assert values["output/W"].dtype == np.float32
    assert "h/W/int8" in (tmp_path / "out" / "parameters.txt").read_text().split()
    with pytest.raises(DataError, match=r"int8: h/W \[192, 192\] is stored as int8 there, for an export"):
        returnn_tf.load_checkpoint(_network(TAGGER), str(tmp_path / "out" / "graph"))


@pytest.mark.slow
def test_block_by_block(tmp_path):
    returnn_tf.export(_network(STREAM), str(tmp_path / "out"), to="frozen", quantize="int8", state=True, portable=True)


@pytest.mark.slow
def test_setting_and_option_give_the_same(tmp_path):
    by_option, by_setting = str(tmp_path / "option"), str(tmp_path / "setting")
    returnn_tf.export(_network(TAGGER), by_option, quantize="int8", exclude=["output"], portable=True)
    net = _network(TAGGER, quantize={"exclude": ["output"]})
    returnn_tf.export(net, by_setting, portable=True)
    feed = {"data": np.random.RandomState(2).normal(size=(2, 4, WIDTH)).astype("float32"), "data_size0": [4, 3]}
    a, b = (load(folder)(**feed)["output"] for folder in (by_option, by_setting))
    np.testing.assert_array_equal(a, b)
    assert read_side_file(by_option)["int8"] == read_side_file(by_setting)["int8"] == ["h/W"]


@pytest.mark.parametrize("to", ["onnx", "tflite"])
def test_targets_without_our_ops(tmp_path, to):
    with pytest.raises(ConfigError, match="export to %s: the setting quantize is for graphs with our ops" % to):
        returnn_tf.export(_network(TAGGER, quantize="int8"), str(tmp_path / "out"), to=to)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("layers, settings, text", [
    (TAGGER, {"quantize": {"exclude": ["h"]}}, "export to saved_model: the setting quantize has rounded"),
    ({"output": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data"}}, {}, "quantize: no matrix with at least"),
])  # fmt: skip
def test_option_without_effect(tmp_path, layers, settings, text):
    with pytest.raises(ConfigError, match=text):
        returnn_tf.export(_network(layers, **settings), str(tmp_path / "out"), quantize="int8")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("given, stored", [
    ({}, ["h/W", "output/W"]),
    ({"exclude": ["output"]}, ["h/W"]),
    ({"quantize": "int8", "exclude": ["h"]}, ["output/W"]),
])  # fmt: skip
@pytest.mark.parametrize("setting", ["int8", {"exclude": ["h"]}])
def test_setting_of_a_config(given, stored, setting):
    """The network is loaded with floats, with which --check compares; the setting is for the export, below options."""
    if not given and setting != "int8":
        stored = ["output/W"]
    exporter = make_exporter("saved_model", given)
    config = returnn_tf.Config({"network": TAGGER, "extern_data": EXTERN_DATA, "quantize": setting})
    net = returnn_tf.Network.from_config(exporter.config_to_load(config))
    assert not net.plan.rounded
    assert sorted(exporter.network(net).plan.rounded) == stored == exporter.facts["int8"]


def test_exclude_alone(tmp_path):
    with pytest.raises(ConfigError, match="exclude has a meaning with quantize alone"):
        returnn_tf.export(_network(TAGGER), str(tmp_path / "out"), exclude=["output"])


@pytest.mark.slow
@pytest.mark.parametrize("layers, exclude, stored", [
    (TAGGER, [], ["h", "output"]),
    (TAGGER, ["out*"], ["h"]),
    (STREAM, [], ["h/output", "output"]),  # in a loop
    (DECODER, ["output/h"], ["enc", "output/embed", "output/prob"]),
], ids=["layers", "exclude", "loop", "search"])  # fmt: skip
def test_onnx(tmp_path, layers, exclude, stored):
    """By onnxruntime: also matrices that are read within a loop."""
    net, folder = _network(layers, search=layers is DECODER), str(tmp_path / "int8")
    returnn_tf.export(net, folder, to="onnx", quantize="int8", exclude=exclude)
    returnn_tf.export(net, str(tmp_path / "float"), to="onnx")
    assert read_side_file(folder)["int8"] == stored and not [f for f in os.listdir(folder) if "tmp" in f]
    params = [net.plan.by_path()[path].owned[0] for path in stored if "/" not in path]
    saved = os.path.getsize(str(tmp_path / "float" / "model.onnx")) - os.path.getsize(folder + "/model.onnx")
    assert saved > 2.5 * sum(spec.size for spec in params) + 2.5 * WIDTH**2 * sum("/" in path for path in stored)


@pytest.mark.slow
@pytest.mark.parametrize("options, text", [
    ({"exclude": ["outptu"]}, "exclude has 'outptu', but no layer .* Did you mean 'output'"),
    ({"exclude": ["h", "output"]}, "no matrix with at least"),
])  # fmt: skip
def test_onnx_mistakes(tmp_path, options, text):
    with pytest.raises(ConfigError, match=text):
        returnn_tf.export(_network(TAGGER), str(tmp_path / "out"), to="onnx", quantize="int8", **options)
    assert not os.listdir(tmp_path)
