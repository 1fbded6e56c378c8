"""The target ``tflite``: each export is run by TFLite's interpreter and compared with `Network.run`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError, DataError
from returnn_tf.export.tflite.conversion import flex_ops
from returnn_tf.export.tflite.exporter import run_model
from returnn_tf.util.lazy_tf import tf
from tests.export.small_nets import DECODER, NETS, network


def _export(net: returnn_tf.Network, folder: Path, **options: Any) -> dict[str, Any]:
    """Export, which compares; return what the side file says."""
    returnn_tf.export(net, str(folder), "tflite", **options)
    facts: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return facts


@pytest.mark.slow
@pytest.mark.parametrize("name, frames", [*((name, None) for name in NETS), ("convolution", 9), ("attention", 9)])
def test_one_sequence_needs_no_tensorflow(tmp_path: Path, name: str, frames: Optional[int]) -> None:
    """With a batch of 1, which is the default, TFLite's own ops do, also for LSTMs and attention."""
    facts = _export(network(NETS[name]), tmp_path / "out", frames=frames)
    assert facts["tf_ops"] == [] == flex_ops((tmp_path / "out" / "model.tflite").read_bytes())
    assert (facts["batch"], facts["frames"]) == (1, frames)


_CONV = {"class": "conv", "n_out": 8, "filter_size": (3,), "from": "data"}
#: convolutions and pooling of any number of frames, whose channels the converter has to know
WINDOWS: dict[str, dict[str, Any]] = {
    "unpadded": {**_CONV, "padding": "valid"},
    "strides": {**_CONV, "padding": "same_static", "strides": 2, "use_time_mask": True},
    "dilated strides": {**_CONV, "padding": "same_static", "strides": 2, "dilation_rate": 2},
    "depthwise": {**_CONV, "padding": "same", "groups": 4},
    "grouped": {**_CONV, "padding": "same", "groups": 2},
    "two axes": {**_CONV, "filter_size": (3, 3), "strides": (2, 2), "padding": "same_static",
                 "input_add_feature_dim": True},
    "other axes": {**_CONV, "padding": "same_static", "input_add_feature_dim": True, "in_spatial_dims": ["T"]},
    "pooling": {"class": "pool", "mode": "max", "pool_size": (3,), "padding": "same_static", "from": "data"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_over_any_number_of_frames(tmp_path: Path, name: str) -> None:
    net = network({"output": {**WINDOWS[name], "is_output_layer": True}})
    for number, options in enumerate([{}, {"batch": 0, "quantize": "dynamic_range"}]):
        assert _export(net, tmp_path / str(number), **options)["tf_ops"] == []


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "dynamic_range"])
def test_conformer_of_the_cookbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantize: str) -> None:
    """Strides over time and features, relative positions, depthwise convolutions."""
    folder = Path(returnn_tf.__file__).parents[1] / "docs" / "cookbook"
    shutil.copy(folder / "generated.py", tmp_path)
    config = (folder / "conformer.config").read_text(encoding="utf8").replace("NUM_BLOCKS = 2", "NUM_BLOCKS = 1")
    (tmp_path / "conformer.config").write_text(config)
    monkeypatch.chdir(tmp_path)
    net = returnn_tf.Network.from_config(returnn_tf.Config.from_file("conformer.config"))
    facts = _export(net, tmp_path / "out", outputs=["log_posteriors"], quantize=quantize)
    assert facts["tf_ops"] == []


@pytest.mark.parametrize("name", ["convolution", "transformer"])
def test_any_batch_without_loops(tmp_path: Path, name: str) -> None:
    assert _export(network(NETS[name]), tmp_path / "out", batch=0)["tf_ops"] == []


@pytest.mark.slow
def test_any_batch_with_loops_needs_tensorflow(tmp_path: Path) -> None:
    """The error names layers, ops and both ways out; with the option the ops are in the side file."""
    net = network(NETS["blstm"])
    with pytest.raises(ConfigError) as error:
        _export(net, tmp_path / "out", batch=0)
    for part in ("'fw1' (class 'rec': TensorListReserve)", "'bw2'", "batch 1", "select_tf_ops", "--to saved_model"):
        assert part in str(error.value), part
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    assert "TensorListReserve" in _export(net, tmp_path / "out", batch=0, select_tf_ops=True)["tf_ops"]


def test_runs_from_the_file_alone(tmp_path: Path) -> None:
    """A program needs the names of the side file only; it may feed other lengths than those of the check."""
    net = network(NETS["transformer"])
    _export(net, tmp_path / "out")
    x = np.random.RandomState(5).normal(0, 1, [1, 8, 4]).astype("float32")
    runner = tf.lite.Interpreter(model_path=str(tmp_path / "out" / "model.tflite")).get_signature_runner()
    got = runner(data=x, data_size0=np.array([6], "int32"))
    expected = net.run({"data": x, "data/size0": [6]}).layers["output"].value
    np.testing.assert_allclose(got["output"][:, :6], expected[:, :6], rtol=1e-5, atol=1e-6)
    assert got["output_size0"].tolist() == [6]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 0])
def test_search(tmp_path: Path, batch: int) -> None:
    """A whole beam search; for one sequence by TFLite's own ops."""
    options: dict[str, Any] = {"outputs": ["decision"], "batch": batch, "select_tf_ops": not batch}
    facts = _export(network(DECODER, search=True), tmp_path / "out", **options)
    assert list(facts["outputs"]) == ["decision", "decision_size0", "decision_scores"]
    assert bool(facts["tf_ops"]) == (not batch)


@pytest.mark.parametrize("quantize, most", [("float16", 0.55), ("dynamic_range", 0.4)])
def test_quantized_weights(tmp_path: Path, quantize: str, most: float) -> None:
    """The file is smaller; the tolerance is larger, and the side file says how large."""
    wide = {"hidden": {**NETS["feed_forward"]["hidden"], "n_out": 3000}, "output": NETS["feed_forward"]["output"]}
    plain, small = tmp_path / "plain", tmp_path / "small"
    assert _export(network(wide), plain)["tolerance"] == 1e-5
    assert _export(network(wide), small, quantize=quantize)["tolerance"] > 1e-5
    sizes = [(folder / "model.tflite").stat().st_size for folder in (plain, small)]
    assert sizes[1] < most * sizes[0]


WITHOUT_FORM: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an op that only TensorFlow has": (
        {"logits": {"class": "linear", "activation": None, "n_out": 6, "from": "data"},
         "output": {"class": "ctc_loss", "logits": "logits", "targets": "data:classes", "blank_index": -1}},
        ["'output' (class 'ctc_loss': CTCLoss)", "select_tf_ops", "saved_model"],
    ),
    "an op that TFLite has for some sizes only": (
        {"channel": {"class": "slice", "axis": "F", "slice_end": 1, "from": "data"},
         "output": {"class": "stft", "frame_size": 6, "frame_shift": 2, "from": "channel"}},
        ["the layer 'output' (class 'stft')", "IsPowerOfTwo", "saved_model"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT_FORM)
def test_layer_without_a_form(tmp_path: Path, case: str) -> None:
    """The error names the layer, why, and what else to choose; nothing is written."""
    layers, parts = WITHOUT_FORM[case]
    with pytest.raises(ConfigError) as error:
        _export(network(layers), tmp_path / "out")
    for part in parts:
        assert part in str(error.value), part
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_python_code_has_no_form(tmp_path: Path) -> None:
    """An op that calls Python is refused by its layer, also with the ops of TensorFlow."""
    code = "lambda source, **_: tf.numpy_function(lambda x: x + 1, [source(0)], tf.float32)"
    layers = {"output": {"class": "eval", "from": "data", "eval": "(%s)(source)" % code}}
    for select_tf_ops in (False, True):
        with pytest.raises(ConfigError, match="output/PyFunc.*Python"):
            _export(network(layers), tmp_path / "out", select_tf_ops=select_tf_ops)


def test_program_without_flex_delegate(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that lacks TensorFlow's ops, as that of small devices: one line, which says so."""

    def interpreter(model_path: str) -> Any:
        raise RuntimeError("Select TensorFlow op(s) are not supported. Link the Flex delegate.\nNode number 4 failed.")

    monkeypatch.setattr(tf.lite, "Interpreter", interpreter)
    with pytest.raises(DataError, match=r"^TFLite's interpreter can't run model\.tflite: .* Flex delegate\.$"):
        run_model("some/model.tflite", {})


@pytest.mark.parametrize("options", [{"batch": -1}, {"frames": 0}, {"quantize": "int4"}, {"portable": True}])
def test_wrong_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tflite.*%s" % next(iter(options))):
        _export(network(NETS["feed_forward"]), tmp_path / "out", **options)


def test_frames_of_all_inputs(tmp_path: Path) -> None:
    """With a fixed size, the time axes of the inputs have it, and the lengths say what is padding."""
    layers = {"output": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}}
    facts = _export(network(layers), tmp_path / "out", frames=8)
    assert facts["frames"] == 8
    interpreter = tf.lite.Interpreter(model_path=str(tmp_path / "out" / "model.tflite"))
    details = interpreter.get_signature_runner().get_input_details()
    assert details["data"]["shape"].tolist() == [1, 8, 4]


def _ops(folder: Path) -> list[str]:
    interpreter = tf.lite.Interpreter(str(folder / "model.tflite"))
    return [op["op_name"] for op in interpreter._get_ops_details()]


_LSTM = {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"}


@pytest.mark.parametrize(
    "layers, options, fused, loops",
    [
        ({"lstm": _LSTM, "back": {**_LSTM, "direction": -1}}, {}, 2, 0),
        ({"lstm": _LSTM, "back": {**_LSTM, "direction": -1}}, {"batch": 3, "frames": 13}, 2, 0),
        ({"lstm": {**_LSTM, "unit": "standardlstm", "unit_opts": {"forget_bias": 2.0}}}, {}, 1, 0),
        ({"lstm": _LSTM, "back": {**_LSTM, "from": "lstm"}}, {"quantize": "dynamic_range"}, 2, 0),
        ({"lstm": _LSTM, "last": {"class": "get_last_hidden_state", "n_out": 12, "from": "lstm"}}, {}, 1, 1),
        ({"lstm": _LSTM, "more": {**_LSTM, "initial_state": 1}}, {}, 1, 1),
        ({"lstm": {**_LSTM, "unit": "standardlstm", "unit_opts": {"use_peepholes": True}}}, {}, 0, 1),
        ({"lstm": {**_LSTM, "unit": "gru"}}, {}, 0, 1),
        ({"lstm": _LSTM}, {"quantize": "float16"}, 0, 1),
        ({"lstm": _LSTM}, {"state": True}, 0, 1),
    ],
)
def test_lstms_are_one_op(
    tmp_path: Path, layers: dict[str, Any], options: dict[str, Any], fused: int, loops: int
) -> None:
    """TFLite's own, where it can express the unit; else a loop over the frames. A loop, too, if a state is read."""
    net = network({name: {**layer, "is_output_layer": True} for name, layer in layers.items()})
    assert _export(net, tmp_path / "out", **options)["tf_ops"] == []
    ops = _ops(tmp_path / "out")
    assert (ops.count("UNIDIRECTIONAL_SEQUENCE_LSTM"), ops.count("WHILE")) == (fused, loops)


def test_runs_do_not_depend_on_those_before(tmp_path: Path) -> None:
    """Although TFLite's LSTM keeps its state, even one that is no number; frames that are none give none."""
    net = network({"output": {**_LSTM, "is_output_layer": True}})
    _export(net, tmp_path / "out")
    assert "UNIDIRECTIONAL_SEQUENCE_LSTM" in _ops(tmp_path / "out")
    runner = tf.lite.Interpreter(str(tmp_path / "out" / "model.tflite")).get_signature_runner()
    rng = np.random.RandomState(2)
    for broken in (None, np.nan, np.inf, 1e30, None):
        for frames in (9, 4, 1):
            x = rng.normal(size=[1, frames, 4]).astype("float32")
            lens = np.array([frames], "int32")
            expected = net.run({"data": x, "data/size0": lens}).layers["output"].value
            np.testing.assert_allclose(runner(data=x, data_size0=lens)["output"], expected, rtol=1e-5, atol=1e-6)
            if broken is not None:
                x[0, 0, 1] = broken
                got = runner(data=x, data_size0=lens)["output"]
                assert np.isnan(got[0, 0]).all() == (not np.isfinite(broken))
