"""Units of `masked_computation` with a memory, under random masks: step by step, for all steps at once and outside of
loops."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim
from tests.layers.nets import LENS, feed, net_of
from tests.layers.rec.test_masked_computation import LINEAR, LSTM, loop, outside, results, valid
from tests.tiers import usual

ATTENTION = {"class": "self_attention", "num_heads": 1, "total_key_dim": 2, "n_out": 2, "attention_left_only": True}
HISTORY = SpatialDim("history")


def subnetwork(**layers):
    return {"class": "subnetwork", "from": "data", "subnetwork": layers}


def inner(unit):
    """Return the unit in a mask of its own."""
    return subnetwork(
        sum={"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
        m={"class": "compare", "kind": "greater", "value": 1.0, "from": "sum"},
        output={"class": "masked_computation", "mask": "m", "from": "data", "unit": unit},
    )


UNITS = {
    "self attention": ATTENTION,
    "relative": subnetwork(
        shift={"class": "relative_positional_encoding", "n_out": 2, "clipping": 2, "from": "data"},
        output={**ATTENTION, "key_shift": "shift", "from": "data"},
    ),
    "transformer": subnetwork(
        e={"class": "positional_encoding", "add_to_input": True, "from": "data"},
        att={**ATTENTION, "from": "e", "n_out": 4, "num_heads": 2},
        ff={**LINEAR, "from": "att"},
        res={"class": "combine", "kind": "add", "from": ["e", "ff"]},
        att2={**ATTENTION, "from": "res"},
        output={"class": "layer_norm", "from": "att2"},
    ),
    "history": subnetwork(
        all={"class": "cum_concat", "out_spatial_dim": HISTORY, "from": "data"},
        energy={"class": "dot", "red1": "F", "red2": "F", "var1": "auto", "var2": "auto", "from": ["data", "all"]},
        weights={"class": "softmax_over_spatial", "axis": HISTORY, "from": "energy"},
        output={"class": "dot", "red1": HISTORY, "red2": HISTORY, "var1": "auto", "var2": "auto",
                "from": ["weights", "all"]},
    ),
    "cell": subnetwork(
        cell={"class": "rnn_cell", "unit": "standardlstm", "n_out": 3, "from": ["data", "h"]},
        h={**LINEAR, "from": "data"},
        state={"class": "get_last_hidden_state", "from": "cell", "n_out": 6},
        output={**LINEAR, "from": ["cell", "state"]},
    ),
    "nested cell": inner(LSTM),
    "nested attention": inner(ATTENTION),
    "loop over the encoder": subnetwork(
        loop={"class": "rec", "from": "base:base:data", "unit": {
            "output": {**LINEAR, "from": ["data:source", "prev:output", "base:data"], "need_last": True}}},
        output={"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "output"},
    ),
    "window": {"class": "window", "window_size": 2, "window_right": 0},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", usual([1, 2], [1]))
@pytest.mark.parametrize("unit", usual(sorted(UNITS), set(UNITS) - {"self attention", "nested attention"}))
def test_random_masks(unit, seed):
    """The third sequence may have no picked frame at all."""
    arrays = feed(data=np.random.default_rng(seed).normal(size=(3, 4, 3)) - np.array([0, -0.5, 1])[:, None, None])
    got, grads, net = results(loop(UNITS[unit]), arrays, with_grad=True)
    step, step_grads, other = results(loop(UNITS[unit], moved=False), arrays, with_grad=True)
    assert {n: v.shape for n, v in net.params.items()} == {n: v.shape for n, v in other.params.items()}
    for a, b in zip(valid(got), valid(step)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for name, grad in grads.items():
        # layer_norm of nearly equal features magnifies roundings: a thousandth also between two forms in TensorFlow
        np.testing.assert_allclose(grad, step_grads[name], rtol=1e-2, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("unit", usual(["self attention", "transformer", "history"], ["transformer", "history"]))
def test_only_the_picked_frames_matter(unit):
    """In a loop with another loop's values as source: as if the other frames were not there."""
    arrays = feed()
    got, _, _ = results(loop(UNITS[unit], moved=False), arrays)
    for b, length in enumerate(LENS):
        frames = [t for t in range(length) if arrays["data"][b, t].sum() > 0]
        if frames:
            alone = {name: value[b : b + 1] for name, value in arrays.items()}
            alone["data"] = arrays["data"][b : b + 1, frames]
            alone.update({name: np.array([len(frames)], "int32") for name in alone if name.endswith("size0")})
            alone["other"] = arrays["other"][b : b + 1, frames]
            expected, _, _ = results(loop(UNITS[unit], moved=False), alone)
            np.testing.assert_allclose(got[frames, b], expected[:, 0], rtol=1e-4, atol=1e-6)


def test_unmasked_outside():
    expected, _, other = results(loop(UNITS["self attention"]))
    net = net_of(outside(UNITS["self attention"]))
    for name, var in net.params.items():
        var.assign(other.params["loop/rec/" + name])
    got = np.moveaxis(net.run(feed()).layers["output"].value, 0, 1)
    for a, b in zip(valid(got), valid(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("unit", ["linear", "transformer", "cell", "nested cell"])
def test_unit_on_zeros_before_the_first_picked_frame(unit, moved):
    """As if a frame of zeros had been picked, of which no state knows."""
    options = {"initial_output": "apply(0)"}
    arrays = feed(data=-np.abs(feed()["data"]))
    network = loop(UNITS.get(unit, LINEAR), moved=moved, **options)
    net = net_of(network)
    net.set_param_values({k: v + 0.1 for k, v in net.get_param_values().items()})
    got = np.moveaxis(net.run(arrays).layers["output"].value, 0, 1)
    always = loop(UNITS.get(unit, LINEAR), moved=moved, mask={
        "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data:source"},
        "m": {"class": "compare", "kind": "less", "value": 1e6, "from": "sum"}})  # fmt: skip
    other = net_of(always)
    other.set_param_values(net.get_param_values())
    expected = other.run(feed(data=np.zeros([3, 4, 3]))).layers["output"].value[:, 0]
    for b, frames in enumerate(valid(got)):
        np.testing.assert_allclose(frames, np.tile(expected[b], (LENS[b], 1)), rtol=1e-4, atol=1e-6)
