"""Networks as functions of a block of frames and the state: blocks of frames give the same as whole sequences."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.saved_model.loader import load
from returnn_tf.export.side_file import read_side_file
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.streaming_exporter import check_stream, stream_fault
from returnn_tf.util.lazy_tf import tf
from tests.docs.run_page import blocks_of

FEATURES, LABELS = {"dim": 4}, {"dim": 7, "sparse": True}
SOFTMAX = {"class": "softmax", "n_out": 5, "from": "in"}


def rec(unit, source="data", **options):
    return {"class": "rec", "unit": unit, "n_out": 3, "from": source, **options}


def model_of(layers, data=FEATURES, *, streaming=True):
    config = {"network": layers, "extern_data": {"data": data}, "behavior_version": 21}
    net = returnn_tf.Network.from_config(returnn_tf.Config(config))
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(0, 0.5, var.shape) for name, var in net.stored_params.items()})
    return StreamingModel(net) if streaming else InferenceModel(net)


LOOP = {
    "s": rec("lstm", ["data:source", "prev:output"]),
    "sum": {"class": "cumsum", "from": "data:source"},
    "known": rec("gru", ["data:source", "prev:sum"]),
    "output": {"class": "linear", "activation": "tanh", "n_out": 4, "from": ["s", "prev:s", "known"],
               "initial_output": "ones"},
}  # fmt: skip
MASKED = {
    "energy": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
    "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "energy"},
    "h": {"class": "masked_computation", "mask": "mask", "from": "data", "unit": rec("lstm")},
    "output": {"class": "unmask", "mask": "mask", "from": "h"},
}
ATTENTION = {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4, "attention_left_only": True}


def transformer(source, *, positions=True):
    """Return the layers of a Transformer language model."""
    layers = {"emb": {"class": "linear", "activation": None, "n_out": 4, "with_bias": False, "from": source}}
    if positions:
        layers["pos"] = {"class": "positional_encoding", "add_to_input": True, "from": "emb"}
    last = "pos" if positions else "emb"
    for i in range(2):
        att, ff = "att%d" % i, "ff%d" % i
        layers[att] = {**ATTENTION, "from": last}
        layers[att + "_sum"] = {"class": "combine", "kind": "add", "from": [last, att]}
        layers[ff] = {"class": "linear", "activation": "relu", "n_out": 4, "from": att + "_sum"}
        last = ff
    return {**layers, "output": {"class": "softmax", "n_out": 7, "from": last}}


def history(path):
    """Return the names of the states of an attention layer."""
    return {"state_%s_%s" % (path, name) for name in ("k_left", "v_left", "mask")}


STREAMS = {
    "lstm": ({"l": rec("lstm"), "output": {**SOFTMAX, "from": "l"}}, FEATURES, {"state_l_c", "state_l_h"}),
    "gru, and an LSTM that begins with parameters": (
        {"g": rec("gru"), "output": rec("standardlstm", "g", initial_state="var")},
        FEATURES,
        {"state_g", "state_output_c", "state_output_h"},
    ),
    "language model": (
        {
            "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
            "l": rec("lstm", "emb", initial_state="keep_over_epoch_no_init"),
            "output": {**SOFTMAX, "from": "l"},
        },
        LABELS,
        {"state_l_rec_keep_state_c", "state_l_rec_keep_state_h"},
    ),
    "states of other sizes": (
        {"h": rec("rwkv7", unit_opts={"head_size": 3}), "output": rec("mamba", "h", unit_opts={"d_state": 2})},
        FEATURES,
        {"state_h_shift", "state_h_S", "state_output_h", "state_output_conv"},
    ),
    "loop": (
        {"loop": {"class": "rec", "from": "data", "unit": LOOP}, "output": {**SOFTMAX, "from": "loop"}},
        FEATURES,
        {
            "state_loop_known",
            "state_loop_output_prev",
            "state_loop_prev_sum_prev",
            "state_loop_s_c",
            "state_loop_s_h",
            "state_loop_s_prev",
            "state_loop_sum_sum",
        },
    ),
    "masked frames": (MASKED, FEATURES, {"state_h_output_c", "state_h_output_h", "state_output_held"}),
    "sum over frames": ({"output": {"class": "cumsum", "from": "data"}}, FEATURES, {"state_output_sum"}),
    "Transformer language model": (
        transformer("data"),
        LABELS,
        history("att0") | history("att1") | {"state_pos_position"},
    ),
    "its layers in a loop, and moved out of it": (
        {"output": {"class": "rec", "from": "data", "unit": transformer("data:source")}},
        LABELS,
        history("output_att0") | history("output_att1") | {"state_output_pos_position"},
    ),
    "its layers in a loop, step by step": (
        {
            "output": {
                "class": "rec",
                "from": "data",
                "optimize_move_layers_out": False,
                "unit": transformer("data:source"),
            }
        },
        LABELS,
        history("output_att0") | history("output_att1") | {"state_output_pos_position"},
    ),
    "attention in a loop that needs its steps": (
        {
            "output": {
                "class": "rec",
                "from": "data",
                "unit": {
                    "in": {"class": "linear", "activation": "tanh", "n_out": 4, "from": ["data:source", "prev:output"]},
                    "pos": {"class": "positional_encoding", "add_to_input": True, "from": "in"},
                    "output": {**ATTENTION, "from": "pos"},
                },
            }
        },
        FEATURES,
        history("output_output") | {"state_output_pos_position", "state_output_output_prev"},
    ),
    "attention to what is kept, in a loop": (
        {
            "output": {
                "class": "rec",
                "from": "data",
                "optimize_move_layers_out": False,
                "unit": {"output": {**ATTENTION, "from": "data:source", "initial_state": "keep_over_epoch_no_init"}},
            }
        },
        FEATURES,
        history("output_rec_output_keep_state"),
    ),
    "positions with an offset": (
        {
            "last": {"class": "cast", "dtype": "int32", "from": "sum"},
            "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "total"},
            "total": {"class": "cumsum", "from": "data"},
            "output": {"class": "positional_encoding", "add_to_input": True, "offset": "last", "from": "data"},
        },
        FEATURES,
        {"state_total_sum", "state_output_position"},
    ),
    "best path of CTC": (
        {"l": rec("lstm"), "p": {**SOFTMAX, "from": "l"}, "output": {"class": "ctc_greedy", "from": "p"}},
        FEATURES,
        {"state_l_c", "state_l_h", "state_output_prev"},
    ),
    "windows that look back": (
        {
            "x": {"class": "window", "window_size": 4, "window_right": 0, "from": "data"},
            "y": {"class": "merge_dims", "axes": ["stag:window", "F"], "from": "x"},
            "output": rec("lstm", "y"),
        },
        FEATURES,
        {"state_x_before", "state_output_c", "state_output_h"},
    ),
    "attention to what is kept": (
        {"output": {**ATTENTION, "from": "data", "initial_state": "keep_over_epoch_no_init"}},
        FEATURES,
        history("output_keep_state"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_blocks(name):
    """All frames of all blocks are those of whole sequences, also where some sequences have ended; states by name."""
    layers, data, states = STREAMS[name]
    model = model_of(layers, data)
    check_stream(model, 1)
    assert set(model.states) == states


@pytest.mark.slow
def test_blocks_by_hand():
    """The check of the checker: two sequences, blocks of 2 and 3 frames, without its code."""
    layers, data, _ = STREAMS["loop"]
    model, whole = model_of(layers, data), model_of(layers, data, streaming=False)
    x, lens = np.random.RandomState(2).normal(0, 1, [2, 5, 4]).astype("float32"), np.array([5, 1], "int32")
    expected = whole.net.run({"data": x, "data/size0": lens}).layers["output"].value
    first = model.expected({"data": x[:, :2], "data_size0": np.array([2, 1], "int32"), **model.zero_states(2)})
    states = {name: first[after] for name, after in model.states.items()}
    second = model.expected({"data": x[:, 2:], "data_size0": np.array([3, 0], "int32"), **states})
    np.testing.assert_allclose(first["output"][0], expected[0, :2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second["output"][0], expected[0, 2:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first["output"][1, :1], expected[1, :1], rtol=1e-5, atol=1e-6)
    for name, after in model.states.items():
        assert second[after].shape == first[after].shape
        np.testing.assert_array_equal(second[after][1], states[name][1], err_msg=name)  # it had ended


REFUSED = {
    "backwards": ({"bw": rec("lstm", direction=-1), "output": {**SOFTMAX, "from": "bw"}}, "'bw' .* runs backwards"),
    "convolution": (
        {
            "l": rec("lstm"),
            "conv": {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": 2, "from": "l"},
            "output": {**SOFTMAX, "from": "conv"},
        },
        "Layer 'conv' .class 'conv'. can't go on .* depend on more than the frames before",
    ),
    "convolution, and nothing recurrent": (
        {"output": {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": 2, "from": "data"}},
        "Layer 'output' .class 'conv'. can't go on .* depend on more than the frames before",
    ),
    "convolution that shortens": (
        {
            "conv": {"class": "conv", "filter_size": (3,), "padding": "valid", "n_out": 2, "from": "data"},
            "output": rec("lstm", "conv"),
        },
        "Layer 'conv' .class 'conv'. can't go on",
    ),
    "attention": (
        {
            "l": rec("lstm"),
            "att": {**ATTENTION, "attention_left_only": False, "from": "l"},
            "output": {**SOFTMAX, "from": "att"},
        },
        "Layer 'att' .class 'self_attention'. can't go on",
    ),
    "subsampling": (
        {
            "pool": {"class": "pool", "mode": "max", "padding": "same", "pool_size": (2,), "from": "data"},
            "output": rec("lstm", "pool"),
        },
        "Layer 'pool' .class 'pool'. can't go on .* frames in all",
    ),
    "step index": (
        {"output": {"class": "rec", "from": "data", "unit": {
            "i": {"class": "cast", "dtype": "float32", "from": ":i"},
            "output": {"class": "combine", "kind": "add", "from": ["data:source", "i", "prev:output"]}}}},
        "':i' counts|/:i' counts",
    ),
    "window that looks ahead": (
        {
            "x": {"class": "window", "window_size": 3, "from": "data"},
            "y": {"class": "merge_dims", "axes": ["stag:window", "F"], "from": "x"},
            "output": rec("lstm", "y"),
        },
        "Layer 'x' .class 'window'. can't go on .* depend on more than the frames before",
    ),
    "nothing recurrent": ({"output": {**SOFTMAX, "from": "data"}}, "none of the layers is recurrent"),
    "all layers moved out of a loop": (
        {"output": {"class": "rec", "from": "data", "unit": {"output": {**SOFTMAX, "from": "data:source"}}}},
        "none of the layers is recurrent.* No layer of 'output' needs an earlier step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """The layer that needs more than the frames so far is named, with the reason."""
    layers, text = REFUSED[name]
    with pytest.raises(ConfigError, match=text):
        check_stream(model_of(layers), 1)


@pytest.mark.slow
def test_subsampling_in_larger_blocks():
    """Blocks that are multiples of the factor go on."""
    check_stream(model_of(REFUSED["subsampling"][0]), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latency", "chunks"])
def test_recipes_of_the_guide(name):
    """Blocks of whole chunks go on, others do not."""
    page = pathlib.Path(__file__).parents[2].joinpath("docs/guide/streaming.md").read_text(encoding="utf8")
    (text,) = [block.text for block in blocks_of(page) if block.mark == "file: %s.config" % name]
    config = {}
    exec(text, config)
    config = {name: value for name, value in config.items() if name in ("network", "extern_data", "behavior_version")}
    model = StreamingModel(returnn_tf.Network.from_config(returnn_tf.Config(config)))
    assert stream_fault(model, 16) is None
    assert "can't go on from block to block" in stream_fault(model, 12)


@pytest.mark.slow
def test_lstms_within_chunks():
    """They begin anew in each chunk, so that no state is carried on."""
    chunks = {
        "cut": {"class": "time_chunking", "chunk_size": 3, "chunk_step": 3, "from": "data"},
        "fw": rec("lstm", "cut"),
        "bw": rec("lstm", "cut", direction=-1),
        "output": {"class": "time_unchunking", "chunking_layer": "cut", "from": "both"},
        "both": {"class": "copy", "from": ["fw", "bw"]},
    }
    model = model_of(chunks)
    assert stream_fault(model, 3) is None and not model.states


@pytest.mark.slow
@pytest.mark.parametrize(("to", "package"), [("onnx", "tf2onnx"), ("tflite", "tensorflow")])
def test_other_formats(tmp_path, to, package):
    """The states are inputs and outputs there too; the export compares a block that begins with random states."""
    pytest.importorskip(package)
    layers, data, _ = STREAMS["language model"]
    folder = str(tmp_path / "out")
    returnn_tf.export(model_of(layers, data).net, folder, to=to, state=True)
    facts = read_side_file(folder)
    assert all(name in facts["inputs"] and entry["next"] in facts["outputs"] for name, entry in facts["states"].items())


def onnx_runner(folder):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda **fed: dict(zip(names, session.run(names, fed)))


def tflite_runner(folder):
    return tf.lite.Interpreter(model_path=folder + "/model.tflite").get_signature_runner()


RUNNERS = {"saved_model": load, "frozen": load, "onnx": onnx_runner, "tflite": tflite_runner}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("language model", "saved_model"),
        pytest.param("language model", "frozen", marks=pytest.mark.long),
        *(("Transformer language model", to) for to in RUNNERS),
        pytest.param("its layers in a loop, step by step", "saved_model", marks=pytest.mark.long),
        ("its layers in a loop, step by step", "onnx"),
    ],
)
def test_exported(tmp_path, name, to):
    """Another program feeds the states that it got, by the names of model.json; a state of zeros begins a sequence."""
    if to == "onnx":
        pytest.importorskip("tf2onnx")
    layers, data, _ = STREAMS[name]
    model = model_of(layers, data)
    folder = str(tmp_path / "out")
    returnn_tf.export(model.net, folder, to=to, state=True, **({"portable": True} if RUNNERS[to] is load else {}))
    states = read_side_file(folder)["states"]
    labels = np.random.RandomState(1).randint(0, 7, [1, 10]).astype("int32")
    whole = model.net.run({"data": labels, "data/size0": np.array([10], "int32")}).layers["output"].value
    run = RUNNERS[to](folder)
    for size in (1, 3, 7):
        fed = {
            name: np.zeros([1 if n is None else n for n in entry["first_shape"]], entry["dtype"])
            for name, entry in states.items()
        }
        for begin in range(0, 10, size):
            frames = labels[:, begin : begin + size]
            got = run(data=frames, data_size0=np.array([frames.shape[1]], "int32"), **fed)
            np.testing.assert_allclose(got["output"], whole[:, begin : begin + size], rtol=1e-5, atol=1e-6)
            fed = {name: got[entry["next"]] for name, entry in states.items()}


@pytest.mark.slow
def test_shapes_at_the_beginning(tmp_path):
    """Beside the batch axis, one that grows has no size either: model.json tells which is which."""
    layers, data, _ = STREAMS["Transformer language model"]
    returnn_tf.export(model_of(layers, data).net, str(tmp_path / "out"), state=True, portable=True)
    states = read_side_file(str(tmp_path / "out"))["states"]
    shapes = {name: (entry["shape"], entry["first_shape"]) for name, entry in states.items()}
    assert shapes["state_att0_k_left"] == ([None, None, 2, 2], [None, 0, 2, 2])
    assert shapes["state_att0_mask"] == ([None, None], [None, 0])
    assert shapes["state_pos_position"] == ([None], [None])
