"""The target ``onnx``: each export is run by onnxruntime and compared with `Network.run`, which `export` does."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError, DataError
from tests.export.small_nets import DECODER, NEED_FRAMES, NETS, network

pytest.importorskip("tf2onnx")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def _export(net: returnn_tf.Network, folder: Path, **options: Any) -> dict[str, Any]:
    """Export, which compares; return what the side file says."""
    returnn_tf.export(net, str(folder), "onnx", **options)
    facts: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return facts


def _run(folder: Path, feed: dict[str, Any]) -> dict[str, Any]:
    """Run the file as any program does."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed)))


LOOP = {
    "loop": {
        "class": "rec", "from": "data",
        "unit": {
            "state": {"class": "linear", "activation": "tanh", "n_out": 6, "from": ["data:source", "prev:state"]},
            "output": {"class": "linear", "activation": "tanh", "n_out": 6, "from": "state"},
        },
    },
    "output": {"class": "softmax", "n_out": 5, "from": "loop"},
}  # fmt: skip
CONFORMER = {
    "embed": {"class": "linear", "activation": None, "n_out": 8, "from": "half"},
    "half": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"},
    "norm": {"class": "layer_norm", "from": "embed"},
    "positions": {"class": "relative_positional_encoding", "n_out": 4, "from": "norm"},
    "att": {"class": "self_attention", "num_heads": 2, "total_key_dim": 8, "n_out": 8, "key_shift": "positions",
            "from": "norm"},
    "add": {"class": "combine", "kind": "add", "from": ["embed", "att"]},
    "wide": {"class": "linear", "activation": None, "n_out": 16, "from": "add"},
    "gate": {"class": "gating", "activation": "identity", "from": "wide"},
    "depthwise": {"class": "conv", "filter_size": (5,), "n_out": 8, "groups": 8, "padding": "same",
                  "activation": None, "from": "gate"},
    "batch_norm": {"class": "batch_norm", "masked_time": True, "from": "depthwise"},
    "swish": {"class": "activation", "activation": "swish", "from": "batch_norm"},
    "block": {"class": "combine", "kind": "add", "from": ["add", "swish"]},
    "output": {"class": "softmax", "n_out": 5, "from": "block"},
}  # fmt: skip
GRU = {
    "gru": {"class": "rec", "unit": "gru", "n_out": 6, "from": "data"},
    "output": {"class": "softmax", "n_out": 5, "from": "gru"},
}
_SHORT = {"blstm": NETS["blstm"], "conformer": CONFORMER, "loop": LOOP}
_LONG = {"gru": GRU, **{name: layers for name, layers in NETS.items() if name not in _SHORT}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*_SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in _LONG)]
)  # fmt: skip
def test_any_batch_and_length(tmp_path: Path, name: str) -> None:
    """Ragged batches of two sizes, within `export`."""
    net = network({**_SHORT, **_LONG}[name])
    rng = np.random.RandomState(1)
    net.set_param_values(
        {key: value + rng.uniform(0, 0.3, value.shape) for key, value in net.get_param_values().items()}
    )
    facts = _export(net, tmp_path / "out")
    assert (facts["opset"], facts["graph"], facts["batch"]) == (17, "model.onnx", None)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["model.json", "model.onnx"]
    if name == "blstm":  # an op of its own, not a loop
        types = [node.op_type for node in onnx.load(str(tmp_path / "out" / "model.onnx")).graph.node]
        assert types.count("LSTM") == 4 and "Loop" not in types


@pytest.mark.slow
@pytest.mark.parametrize("name", NEED_FRAMES)
def test_sequences_without_frames(tmp_path: Path, name: str) -> None:
    """A batch of them, e.g. since no speech was found, has outputs without frames; one in a batch changes no other."""
    net = network(NEED_FRAMES[name])
    _export(net, tmp_path / "out")
    for lens in ([0], [0, 0], [5, 0]):
        x = np.random.RandomState(5).normal(0, 1, [len(lens), max(lens), 4]).astype("float32")
        got = _run(tmp_path / "out", {"data": x, "data_size0": np.array(lens, "int32")})
        expected = net.run({"data": x, "data/size0": lens}).layers["output"]
        sizes = expected.sizes[1]
        assert (
            got["output_size0"].tolist() == sizes.tolist() and (sizes[-1] == 0) and got["output"].shape[0] == len(lens)
        )
        assert max(lens) or got["output"].shape[1] == 0
        found = got["output"][0, : sizes[0]]
        np.testing.assert_allclose(found, expected.value[0, : sizes[0]], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rasr_names_and_metadata(tmp_path: Path) -> None:
    """RASR's ``onnx-forward`` feeds ``features`` and ``features-size`` and reads ``output``."""
    net = network(NETS["lstm"])
    facts = _export(net, tmp_path / "out", rasr=True)
    assert facts["inputs"]["data"]["tensor"] == "features"
    x = np.random.RandomState(5).normal(0, 1, [2, 8, 4]).astype("float32")
    got = _run(tmp_path / "out", {"features": x, "features-size": np.array([8, 6], "int32")})
    expected = net.run({"data": x, "data/size0": [8, 6]}).layers["output"].value
    assert sorted(got) == ["output", "output-size"] and got["output-size"].tolist() == [8, 6]
    np.testing.assert_allclose(got["output"][1, :6], expected[1, :6], rtol=1e-5, atol=1e-6)


def test_own_names_and_fixed_batch(tmp_path: Path) -> None:
    names = {"data": "x", "output": "probabilities"}
    facts = _export(network(NETS["feed_forward"]), tmp_path / "out", names=names, batch=1, opset=14)
    assert (facts["batch"], facts["opset"], facts["inputs"]["data_size0"]["tensor"]) == (1, 14, "data_size0")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert {x.name: x.shape[0] for x in session.get_inputs()} == {"x": 1, "data_size0": 1}
    assert [x.name for x in session.get_outputs()] == ["output_size0", "probabilities"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["posteriors", "states", "search"])
def test_integers_of_64_bits_named_axes_and_metadata(tmp_path: Path, case: str) -> None:
    """What toolkits ask for that read features, lengths and a description of the model, such as sherpa-onnx."""
    if case == "search":
        net, options = network(DECODER, search=True), {"outputs": ["output", "decision"]}
        outputs = {"output": ["B*3", "T_output"], "output_size0": ["B*3"], "output_scores": ["B", 3],
                   "decision": ["B", "T_decision"], "decision_size0": ["B"], "decision_scores": ["B", 1]}  # fmt: skip
    else:
        net, options = network(NETS["lstm" if case == "states" else "blstm"]), {"state": case == "states"}
        outputs = {"output": ["B", "T" if case == "states" else "T_output", 5], "output_size0": ["B"]}
        states = ["state_lstm_c", "state_lstm_h"] if case == "states" else []
        outputs.update({name + "_next": ["B", 6] for name in states})
    metadata = {"model_type": "zipformer2_ctc", "version": 1}
    facts = _export(net, tmp_path / "out", int64=True, metadata=metadata, **options)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"model_type": "zipformer2_ctc", "version": "1"}
    inputs = {x.name: (x.shape, x.type) for x in session.get_inputs()}
    assert inputs["data"] == (["B", "T", 4], "tensor(float)")
    assert inputs["data_size0"] == (["B"], "tensor(int64)")
    assert {x.name: x.shape for x in session.get_outputs()} == outputs
    labels_and_lengths = [name for name in outputs if name.endswith("size0") or (case == "search" and "sc" not in name)]
    types = {x.name: x.type for x in session.get_outputs()}
    for name in labels_and_lengths:
        assert (types[name], facts["outputs"][name]["dtype"]) == ("tensor(int64)", "int64"), name


@pytest.mark.slow
def test_labels_of_64_bits_as_input_and_axes_of_several_inputs(tmp_path: Path) -> None:
    """Inputs with the same lengths share the name of the axis, others do not; more frames than the lengths say."""
    layers = {
        "embed": {"class": "linear", "activation": None, "n_out": 4, "from": "data:classes"},
        "lstm": {"class": "rec", "unit": "lstm", "n_out": 5, "from": "embed"},
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "output": {"class": "combine", "kind": "add", "from": ["lstm", "out"]},
        "out": {"class": "linear", "activation": None, "n_out": 5, "from": "mean"},
    }
    net = network(layers)
    _export(net, tmp_path / "out", int64=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    shapes = {x.name: (x.shape, x.type) for x in (*session.get_inputs(), *session.get_outputs())}
    axis = shapes["classes"][0][1]
    assert shapes["classes"] == (["B", axis], "tensor(int64)") and shapes["output"][0] == ["B", axis, 5]
    assert shapes["data"][0][1] != axis and {shapes["data"][0][1], axis} in ({"T", "T_classes"}, {"T", "T_data"})
    rng = np.random.RandomState(3)
    x, labels = rng.normal(size=[2, 8, 4]).astype("float32"), rng.randint(0, 5, [2, 6])
    feed = {"data": x, "data_size0": np.array([7, 4]), "classes": labels, "classes_size0": np.array([5, 2])}
    got = _run(tmp_path / "out", feed)
    expected = net.run({"data": x, "data/size0": [7, 4], "classes": labels, "classes/size0": [5, 2]}).layers["output"]
    np.testing.assert_allclose(got["output"][0, :5], expected.value[0, :5], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got["output"][1, :2], expected.value[1, :2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options, text", [
    ({"int64": True, "stateful": "output"}, "int64 has no meaning with stateful"),
    ({"metadata": {"a": "b"}, "stateful": "output"}, "metadata has no meaning with stateful"),
    ({"names": {"dat": "x"}}, "names: there is no 'dat'. Did you mean 'data'?"),
    ({"names": {"data": "output"}}, "'data' and 'output' would both be called 'output'"),
    ({"names": {"data": ""}}, "not empty"),
    ({"rasr": True, "outputs": ["hidden", "output"]}, "rasr needs a single output, but there are 'hidden', 'output'"),
    ({"outputs": ["data"]}, "the input 'data' and an output have the same name"),
    ({"opset": 9}, "opset"),
    ({"batch": 0}, "batch"),
])  # fmt: skip
def test_wrong_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        _export(network(NETS["feed_forward"]), tmp_path / "out", **options)
    assert text in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_layer_without_a_form(tmp_path: Path) -> None:
    """The error names the layer, also inside of a subnetwork, and what else to choose; nothing is written."""
    inner = {
        "logits": {"class": "linear", "activation": None, "n_out": 6, "from": "data"},
        "output": {"class": "ctc_loss", "logits": "logits", "targets": "base:data:classes", "blank_index": -1},
    }
    layers = {"output": {"class": "subnetwork", "from": "data", "subnetwork": inner}}
    with pytest.raises(ConfigError) as error:
        _export(network(layers), tmp_path / "out")
    for part in ("layer 'output/output' (class 'ctc_loss')", "no form for the op CTCLoss", "saved_model"):
        assert part in str(error.value), part
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_integers_are_divided_as_in_tensorflow(tmp_path: Path) -> None:
    """Quotients and remainders of negative numbers, and values that are not chosen where they are infinite."""
    formula = "tf.cast(tf.cast(source(0) * 10, 'int32') {} -3, 'float32')"
    layers = {
        "quotient": {"class": "eval", "from": "data", "eval": formula.format("//"), "is_output_layer": True},
        "rest": {"class": "eval", "from": "data", "eval": formula.format("%"), "is_output_layer": True},
        "output": {"class": "eval", "from": "data", "eval": "tf.where(source(0) > 0, tf.math.log(source(0)), 0.)"},
    }
    _export(network(layers), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.long  # test_integers_of_64_bits_named_axes_and_metadata has a beam search
@pytest.mark.parametrize("search", [False, True])
def test_label_loop(tmp_path: Path, search: bool) -> None:
    """A greedy loop that ends by itself, and a beam search, for any number of sequences."""
    unit = {
        **DECODER["output"]["unit"],
        "output": {"class": "reduce", "mode": "argmax", "axis": "F", "from": "prob", "initial_output": 0},
    }
    greedy = {**DECODER, "output": {**DECODER["output"], "unit": unit, "is_output_layer": True}}
    greedy.pop("decision")
    facts = _export(network(DECODER if search else greedy, search=search), tmp_path / "out",
                    outputs=["decision" if search else "output"])  # fmt: skip
    name = "decision" if search else "output"
    assert set(facts["outputs"]) == {name, name + "_size0", *([name + "_scores"] if search else [])}


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    load = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tf2onnx":
            raise ModuleNotFoundError("No module named 'tf2onnx'")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(DataError, match=r"^export to onnx needs .*pip install .*\[onnx\].*tf2onnx.*$"):
        _export(network(NETS["feed_forward"]), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_attention_energies_without_bias(tmp_path: Path) -> None:
    """tf2onnx would merge the reshapes around a product with a single output wrongly."""
    layers = {
        "energy": {"class": "linear", "activation": None, "with_bias": False, "n_out": 1, "from": "data"},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "output": {"class": "generic_attention", "weights": "weights", "base": "data"},
    }
    _export(network(layers), tmp_path / "out")
