"""`get_rec_accumulated`, `rec_last_output` and `rec_unstack`."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import LENS, STATIC, TIME, feed, net_of, run, template

H = {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:h"]}


def loop(moved=True, **options):
    unit = {"h": {**H, **options}, "output": {"class": "linear", "activation": None, "n_out": 2, "from": "h"}}
    return {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}


def last(**options):
    return {"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "h", **options}


def test_accumulated_is_the_layer_for_all_steps():
    network = {
        "loop": loop(is_output_layer=True),
        "acc": {"class": "get_rec_accumulated", "from": "loop", "sub_layer": "h", "is_output_layer": True},
        "output": {"class": "copy", "from": "loop/h"},
    }
    out = run(network)
    np.testing.assert_array_equal(out["acc"].value, out["output"].value)
    assert out["acc"].value.shape == (3, 4, 3)
    assert out["acc"].sizes[1].tolist() == LENS.tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("lens", [LENS, [4, 0, 1]])
def test_last_step(moved, lens):
    network = {
        "loop": loop(moved, need_last=True, is_output_layer=True),
        "output": last(),
        "all": {"class": "copy", "from": "loop/h", "is_output_layer": True},
    }
    arrays = feed()
    arrays["data/size0"] = np.array(lens, "int32")
    net = net_of(network)
    out = net.run(arrays).layers
    assert out["output"].value.shape == (3, 3)
    for b, length in enumerate(lens):
        expected = out["all"].value[b, length - 1] if length else np.zeros(3)
        np.testing.assert_allclose(out["output"].value[b], expected, rtol=1e-6)


@pytest.mark.parametrize("initial,first", [(2.5, 2.5), ("base:mean", None), ("apply(0)", 0.0)])
def test_last_step_of_none_is_the_initial_output(initial, first):
    network = {
        "mean": {"class": "reduce", "mode": "sum", "axes": "T", "use_time_mask": False, "from": "data"},
        "loop": loop(need_last=True, initial_output=initial),
        "output": last(),
    }
    arrays = feed()
    arrays["data/size0"] = np.array([4, 0, 1], "int32")
    value = run(network, arrays)["output"].value[1]
    np.testing.assert_allclose(value, arrays["data"][1].sum(0) if first is None else np.full([3], first), rtol=1e-6)


def test_loop_behind_other_layers():
    network = {
        "sub": {"class": "subnetwork", "from": [], "subnetwork": {
            "loop": {**loop(need_last=True), "from": "base:data"}, "output": {"class": "copy", "from": "loop"}}},
        "output": {**last(), "rec_layer": "sub"},
    }  # fmt: skip
    assert run(network)["output"].value.shape == (3, 3)
    with pytest.raises(ConfigError, match="'mean' is not a 'rec' layer"):
        template({"mean": {"class": "copy", "from": "data"}, "output": {**last(), "rec_layer": "mean"}})


def test_gradient_through_the_last_step():
    network = {
        "loop": loop(need_last=True),
        "output": {"class": "eval", "eval": "source(0) ** 2", "from": "last", "loss": "as_is"},
        "last": last(),
    }
    net = net_of(network)
    grads = net.run(feed(), with_grad=True).grads
    assert abs(grads["loop/rec/h/W"]).max() > 0
    # Frames behind the end have no influence.
    arrays = feed()
    arrays["data"][1, LENS[1] :] = 7.0
    np.testing.assert_allclose(net.run(arrays, with_grad=True).grads["loop/rec/h/W"], grads["loop/rec/h/W"])


@pytest.mark.parametrize(
    "network,match",
    [
        ({"loop": loop(), "output": last()}, "need_last"),
        ({"loop": loop(need_last=True), "output": last(sub_layer_name="hh")}, "has no layer 'hh'"),
        ({"loop": {"class": "copy", "from": "data"}, "output": last()}, "not a 'rec' layer"),
        (
            {"loop": loop(), "output": {"class": "get_rec_accumulated", "from": "loop", "sub_layer": "h"}},
            "is_output_layer",
        ),
    ],
)
def test_messages(network, match):
    with pytest.raises(ConfigError, match=match) as info:
        template(network)
    assert "Layer 'output'" in str(info.value)


def unstacked(moved, x):
    unit = {
        "x": {"class": "rec_unstack", **x},
        "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["x", "prev:output"]},
    }
    return {
        "loop": {"class": "rec", "from": [], "unit": unit, "optimize_move_layers_out": moved},
        "output": {"class": "copy", "from": "loop"},
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "loop", "loss": "as_is"},
    }


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("x", [{"from": "base:data"}, {"from": "base:data", "axis": TIME, "declare_rec_time": True}])
def test_unstack_is_the_source_of_the_loop(moved, x):
    network = unstacked(moved, x)
    got = net_of(network).run(feed(), with_grad=True)
    network["loop"]["from"] = "data"
    network["loop"]["unit"]["x"] = {"class": "copy", "from": "data:source"}
    expected = net_of(network).run(feed(), with_grad=True)
    np.testing.assert_allclose(got.layers["output"].value, expected.layers["output"].value, rtol=1e-6)
    assert got.layers["output"].sizes[1].tolist() == LENS.tolist()
    for name, grad in expected.grads.items():
        np.testing.assert_allclose(got.grads[name], grad, rtol=1e-5, atol=1e-6)


def test_unstack_beside_a_source():
    network = unstacked(True, {"from": "base:data:wide", "axis": "T"})
    network["loop"]["from"] = "data"
    network["loop"]["unit"]["output"] = {"class": "combine", "kind": "add", "from": ["x", "data:source"]}
    out = run(network)["output"].value
    arrays = feed()
    np.testing.assert_allclose(out[0], arrays["wide"][0] + arrays["data"][0][:, None], rtol=1e-6)


@pytest.mark.parametrize(
    "x,match",
    [({"from": "base:numbers"}, "axis"), ({"from": "base:data", "axis": "stag:nothing"}, "nothing")],
)
def test_messages_of_unstack(x, match):
    network = unstacked(True, x)
    network["numbers"] = {"class": "reduce", "mode": "sum", "axes": "T", "from": "data"}
    with pytest.raises(ConfigError, match=match) as info:
        template(network)
    assert "loop" in str(info.value)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    "x, options, match",
    [
        ({"from": "base:data", "axis": "F"}, {"from": "data"}, r"axis f=3 of the source .* runs over time\."),
        ({"from": "base:data", "axis": "F"}, {"axis": TIME}, "runs over time"),
        ({"from": "base:data", "axis": "T"}, {"from": "data:wide", "axis": STATIC}, "runs over s=2"),
        ({"from": "base:data", "axis": "F"}, {"from": "data:wide", "axis": STATIC}, "f=3 .* runs over s=2"),
    ],
)
def test_unstack_along_another_axis_than_that_of_the_loop(moved, x, options, match):
    network = unstacked(moved, x)
    network["loop"].update(options)
    del network["loss"]
    with pytest.raises(ConfigError, match=match) as info:
        template(network)
    assert "Layer 'loop/x'" in str(info.value)


POOLED = {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"}


def unstacked_twice(moved, second):
    """Return a loop over the frames of `data` that takes a frame of another layer, too, in each step."""
    network = unstacked(moved, {"from": "base:data", "declare_rec_time": True})
    unit = network["loop"]["unit"]
    unit["y"] = {"class": "rec_unstack", "from": "base:" + second}
    unit["output"] = {"class": "combine", "kind": "add", "from": ["x", "y"]}
    return {**network, "pooled": POOLED, "loss": {**network["loss"], "from": "output"}}


@pytest.mark.parametrize("moved", [False, True])
def test_unstack_of_pooled_frames_beside_all(moved):
    with pytest.raises(ConfigError, match=r"'loop/y' .* axis ceil\(time/2\) of the source .* the loop runs over time"):
        template(unstacked_twice(moved, "pooled"))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("frames", [4, 6])
def test_unstack_of_another_axis_with_the_same_lengths(moved, frames):
    network = unstacked_twice(moved, "data:other")
    arrays = feed(other=np.ones([3, frames, 3]))
    out = net_of(network).run(arrays, with_grad=True).layers["output"]
    np.testing.assert_allclose(out.value, arrays["data"] + 1, rtol=1e-6)
    arrays["data/size0"] = LENS - 1
    arrays["data"] = np.pad(arrays["data"], [(0, 0), (0, 3), (0, 0)])  # other paddings
    message = (
        r"Layer loop/y .* must have the lengths of time\. .* \[0 1 2\] \[lengths:\] \[4 2 3\] \[instead of:\] \[3 1 2\]"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        net_of(network).run(arrays)
    arrays["other/size0"] = LENS - 1
    assert net_of(network).run(arrays).layers["output"].sizes[1].tolist() == (LENS - 1).tolist()


def test_source_along_an_axis_of_other_lengths():
    network = unstacked(True, {"from": "base:data", "axis": TIME})
    network["loop"].update({"from": "data:other", "axis": TIME})
    network["loop"]["unit"]["output"] = {"class": "combine", "kind": "add", "from": ["x", "data:source"]}
    arrays = feed()
    np.testing.assert_allclose(run(network, arrays)["output"].value, arrays["data"] + arrays["other"], rtol=1e-6)
    arrays["other/size0"] = np.array([4, 3, 3], "int32")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Layer loop/source .* must have the lengths of time\."):
        run(network, arrays)


@pytest.mark.parametrize("moved", [False, True])
def test_unstack_along_static_axes(moved):
    """The loop has as many steps as the axis."""
    network = unstacked(moved, {"from": "base:data", "axis": "F"})
    network["loop"]["unit"]["output"] = {"class": "combine", "kind": "add", "from": ["x", "prev:output"]}
    del network["loss"]
    result = run(network)["output"]
    value = result.value if result.value.shape[-1] == 3 else np.moveaxis(result.value, 1, 2)
    np.testing.assert_allclose(value, np.cumsum(feed()["data"], axis=-1), rtol=1e-5)


def test_unstack_outside_of_loops():
    with pytest.raises(ConfigError, match="put it into the unit of a 'rec' layer"):
        template({"output": {"class": "rec_unstack", "from": "data"}})


@pytest.mark.parametrize("moved", [False, True])
def test_axis_of_the_loop_says_how_many_steps(moved):
    network = unstacked(moved, {"from": "base:data", "axis": TIME})
    expected = run(network)["output"]
    network["loop"]["axis"] = TIME
    got = run(network)["output"]
    np.testing.assert_allclose(got.value, expected.value, rtol=1e-6)
    network["loop"]["unit"] = {"output": {"class": "combine", "kind": "add", "from": [":i", "prev:output"]}}
    network["loop"]["unit"]["output"]["initial_output"] = 0
    del network["loss"]
    assert run(network)["output"].value.shape[-1] == 4


def test_declared_axis_comes_first():
    network = unstacked(True, {"from": "base:data", "axis": "T", "declare_rec_time": True})
    unit = network["loop"]["unit"]
    network["loop"]["unit"] = {"y": {"class": "rec_unstack", "from": "base:double", "axis": "T"}, **unit}
    network["double"] = {"class": "resize", "factor": 2, "axis": "T", "from": "data"}
    assert run(network)["output"].sizes[1].tolist() == LENS.tolist()
