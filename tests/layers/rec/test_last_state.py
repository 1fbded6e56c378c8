"""`get_last_hidden_state` of loops and of their cells, from outside."""

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from tests.layers.nets import feed, net_of
from tests.layers.rec.test_hidden_state_in_loops import CELL, LINEAR, lstm_states


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("source,key", [("loop", "*"), ("loop/s", "c"), ("loop/m", "h")])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_state_after_the_last_step(moved, source, key, start):
    cell = {**CELL, "initial_state": "ones" if start else "zeros", "is_output_layer": True}
    always = {"class": "compare", "kind": "greater", "value": -1e9, "from": "first"}
    masked = {"class": "masked_computation", "mask": "always", "from": "data:source", "is_output_layer": True}
    unit = {
        "first": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data:source"},
        "always": always,
        "m": {**masked, "unit": {**cell, "from": "data", "reuse_params": "s"}},
        "s": cell,
        "output": {"class": "copy", "from": "s"},
    }
    if source != "loop/m":
        del unit["m"]
    loop = {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}
    net = net_of({"loop": loop, "output": {"class": "get_last_hidden_state", "from": source, "key": key}})
    arrays, lens = feed(), np.array([4, 0, 3], "int32")
    arrays.update({name: lens for name in arrays if name.endswith("size0")})
    got = net.run(arrays).layers["output"].value
    states = lstm_states(net, np.moveaxis(feed()["data"], 0, 1), start=start)
    part = {"*": slice(0, 6), "c": slice(0, 3), "h": slice(3, 6)}[key]
    for b, length in enumerate(lens):
        expected = states[length - 1, b] if length else np.full([6], start)
        np.testing.assert_allclose(got[b], expected[part], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_state_of_hypotheses():
    """The h of an LSTM is its output: also with hypotheses that ended, some of them at once."""
    unit = {
        "output": {"class": "choice", "target": "classes", "beam_size": 4, "from": "p", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
        "embed": {**LINEAR, "from": "prev:output"},
        "s": {**CELL, "from": ["embed", "base:start"], "is_output_layer": True},
        "p": {"class": "softmax", "from": "s", "target": "classes"},
    }
    network = {
        "start": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"},
        "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": unit},
        "h": {"class": "get_last_hidden_state", "from": "output/s", "key": "h", "is_output_layer": True},
    }
    config = Config({"network": network, "extern_data": {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}})
    rng = np.random.default_rng(1)
    arrays = {"data": rng.normal(size=(3, 4, 3)).astype("float32"), "data/size0": np.array([4, 2, 3], "int32")}
    arrays.update({"classes": np.zeros([3, 1], "int32"), "classes/size0": np.ones([3], "int32")})
    net = Network.from_config(config, search=True)
    net.set_param_values({k: 2 * v for k, v in net.get_param_values().items()})
    layers = net.run(arrays).layers
    values, lens = layers["output/s"].value, layers["output"].sizes[1]
    assert len(set(lens)) > 1
    for row, length in enumerate(lens):
        expected = values[row, length - 1] if length else np.zeros(3)
        np.testing.assert_allclose(layers["h"].value[row], expected, rtol=1e-5, atol=1e-6)


def test_decoder_that_starts_from_the_state_of_a_loop():
    loop = {"class": "rec", "from": "data", "unit": {"output": CELL}, "optimize_move_layers_out": False}
    network = {
        "loop": loop,
        "decoder": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data", "initial_state": "loop"},
        "state": {"class": "get_last_hidden_state", "from": "loop", "key": "*"},
        "c": {"class": "slice", "axis": "F", "slice_end": 3, "from": "state"},
        "h": {"class": "slice", "axis": "F", "slice_start": 3, "from": "state"},
        "other": {
            "class": "rec", "unit": "lstm", "n_out": 3, "from": "data", "initial_state": {"c": "c", "h": "h"},
            "reuse_params": "decoder",
        },
        "output": {"class": "combine", "kind": "sub", "from": ["decoder", "other"]},
    }  # fmt: skip
    net = net_of(network)
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, np.zeros([3, 4, 3]), atol=1e-6)
