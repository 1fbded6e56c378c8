"""`random`, `random_state_init`, `rand_int`."""

import math

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.philox import advanced, state_of_seed
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import FEATURE, STATIC, TIME, fails, feed, net_of, run, template

LABELS = FeatureDim("some labels", 7)
NORMAL = {"class": "random", "distribution": "normal"}


def generator(seed=None, state=None):
    """Return the generator of the expected numbers."""
    if state is not None:
        return tf.random.Generator.from_state(np.array(state, "int64"), alg="philox")
    return tf.random.Generator.from_seed(seed, alg="philox")


@pytest.mark.parametrize("seed", [0, 8, 2**40 + 3, 2**64 + 5, -1, [3], [3, 4], [1, 2, 3], [-1, 2**63]])
def test_state_of_seed(seed):
    np.testing.assert_array_equal(state_of_seed(seed), generator(seed).state.numpy())


@pytest.mark.parametrize("state", [[8, 0, 0], [-256, 0, 5], [-1, -1, 2], [2**63 - 1, 1, 0]])
def test_advance_carries_into_the_second_word(state):
    gen = generator(state=state)
    gen.uniform([5])
    np.testing.assert_array_equal(advanced(tf.constant(state, tf.int64), tf.constant(5)), gen.state.numpy())


DRAWS = {
    "normal": ({**NORMAL, "mean": 2.0, "stddev": 3}, lambda g, s: g.normal(s, 2.0, 3.0)),
    "defaults": (NORMAL, lambda g, s: g.normal(s)),
    "float64": ({**NORMAL, "dtype": "float64"}, lambda g, s: g.normal(s, dtype="float64")),
    "truncated": (
        {"class": "random", "distribution": "truncated_normal", "stddev": 2.0},
        lambda g, s: g.truncated_normal(s, stddev=2.0),
    ),
    "maxval": ({"class": "random", "distribution": "uniform", "maxval": 3.0}, lambda g, s: g.uniform(s, 0, 3.0)),
    "range": (
        {"class": "random", "distribution": "uniform", "minval": -1, "maxval": 3.0},
        lambda g, s: g.uniform(s, -1.0, 3.0),
    ),
    "bound": ({"class": "random", "distribution": "uniform", "bound": 2}, lambda g, s: g.uniform(s, -2.0, 2.0)),
    "moments": (
        {"class": "random", "distribution": "uniform", "mean": 1},
        lambda g, s: g.uniform(s, 1 - math.sqrt(3), 1 + math.sqrt(3)),
    ),
    "ints": (
        {"class": "random", "distribution": "uniform", "dtype": "int64", "maxval": 9, "minval": 2},
        lambda g, s: g.uniform(s, 2, 9, dtype="int64"),
    ),
}


def test_in_the_precision_of_the_network():
    assert template({"output": {**NORMAL, "shape": [batch_dim, FEATURE]}}, float_dtype="float64").dtype == "float64"


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_of_each_run_are_those_of_a_generator(name):
    options, expected = DRAWS[name]
    net = net_of({"output": {**options, "shape": [FEATURE, 2], "seed": 42}})
    assert list(net.params) == ["output/random_generator/StateVar"] and not net.trainable_params
    gen = generator(42)
    for _ in range(2):
        result = net.run(feed()).layers["output"]
        assert result.axes == ("S", "F")
        np.testing.assert_allclose(result.value, expected(gen, [3, 2]).numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(net.params["output/random_generator/StateVar"].numpy(), gen.state.numpy())


@pytest.mark.parametrize(
    "shape,options,axes,size",
    [
        ([batch_dim, TIME, FEATURE], {}, "B,T,F", (3, 4, 3)),
        ([FEATURE, TIME], {}, "S,T", (3, 4)),
        ([FEATURE, batch_dim], {}, "B,S", (3, 3)),
        ([FEATURE, STATIC], {}, "S,F", (3, 2)),
        ([FEATURE, STATIC], {"feature_dim": FEATURE}, "F,S", (3, 2)),
        ([batch_dim, 5], {}, "B,F", (3, 5)),
        ([], {}, "", ()),
        ([0], {}, "F", (0,)),
        (
            [batch_dim, TIME],
            {"distribution": "uniform", "dtype": "int32", "maxval": 7, "sparse_dim": LABELS},
            "B,T",
            (3, 4),
        ),
    ],
)
def test_shapes(shape, options, axes, size):
    result = run({"output": {**NORMAL, "shape": shape, **options}})["output"]
    assert ",".join(result.axes) == axes and result.value.shape == size


def test_static_numbers_never_change():
    net = net_of({"output": {**NORMAL, "shape": [3], "static": True, "seed": 5}})
    values = [net.run(feed()).layers["output"].value for _ in range(2)]
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_allclose(values[0], generator(5).normal([3]).numpy(), rtol=1e-6)
    assert not net.params
    again = net_of({"output": {**NORMAL, "shape": [3], "static": True}})
    np.testing.assert_array_equal(*(again.run(feed()).layers["output"].value for _ in range(2)))


def test_state_in_a_variable():
    net = net_of({
        "init": {"class": "random_state_init", "seed": [1, 2]},
        "state": {"class": "variable", "shape": [3], "dtype": "int64", "init_by_layer": "init"},
        "a": {**NORMAL, "shape": [3], "explicit_state": "state", "auto_update_state": True},
        "b": {**NORMAL, "shape": [3], "explicit_state": "state", "auto_update_state": True},
        "output": {"class": "stack", "from": ["a", "b"]},
    })  # fmt: skip
    assert list(net.params) == ["state/state"]
    gen = generator([1, 2])
    for _ in range(2):
        expected = np.stack([gen.normal([3]).numpy(), gen.normal([3]).numpy()])
        np.testing.assert_allclose(net.run(feed()).layers["output"].value, expected, rtol=1e-6)


def test_own_seeds_differ_by_layer_and_network():
    net = {
        "a": {**NORMAL, "shape": [3]},
        "b": {**NORMAL, "shape": [3]},
        "c": {"class": "random_state_init", "is_output_layer": True},
        "output": {"class": "stack", "from": ["a", "b"]},
    }
    first, same, other = (run(net, random_seed=seed) for seed in (1, 1, 2))
    assert not np.array_equal(*first["output"].value)
    np.testing.assert_array_equal(first["output"].value, same["output"].value)
    assert not np.array_equal(first["output"].value, other["output"].value)
    assert first["c"].value.dtype == "int64" and not np.array_equal(first["c"].value, other["c"].value)


def test_processes_draw_other_numbers():
    net = net_of({"output": {**NORMAL, "shape": [3], "seed": 3}})
    net.noise_seed = net.seed + 1000
    assert not np.allclose(net.run(feed()).layers["output"].value, generator(3).normal([3]).numpy())


@pytest.mark.parametrize("stop", [False, True])
def test_gradient_of_layers_in_options(stop):
    net = net_of(
        {
            "m": {"class": "variable", "shape": ()},
            "noise": {**NORMAL, "shape": [4], "mean": "m", "stop_grad": stop},
            "output": {"class": "reduce", "mode": "sum", "axis": "F", "from": "noise", "loss": "as_is"},
            "l2": {"class": "eval", "from": "m", "eval": "source(0) ** 2", "loss": "as_is"},
        },
        train=True,
    )
    assert net.run(feed(), with_grad=True).grads["m/m"] == (0 if stop else 4)


LOOPS = {"over a source": {"from": "data"}, "until end": {"from": [], "max_seq_len": 4}}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "options", [NORMAL, {"class": "rand_int", "maxval": 10**6}, {**NORMAL, "static": True, "seed": 1}]
)
def test_each_step_of_a_loop_has_its_own_numbers(loop, moved, options):
    unit = {
        "numbers": {**options, "shape": [batch_dim, FEATURE]},
        "floats": {"class": "cast", "dtype": "float32", "from": "numbers"},
        "step": {"class": "cast", "dtype": "float32", "from": ":i"},
        "output": {"class": "eval", "eval": "source(0) + 0 * source(1)", "from": ["floats", "step"]},
    }
    if loop == "until end":
        unit["never"] = {"class": "compare", "kind": "greater", "value": 1e9, "from": "sum"}
        unit["sum"] = {"class": "reduce", "mode": "sum", "axis": "F", "from": "prev:output"}
        unit["end"] = {"class": "copy", "from": "never"}
    net = net_of({"output": {"class": "rec", "unit": unit, "optimize_move_layers_out": moved, **LOOPS[loop]}})
    first, second = (net.run(feed()).layers["output"] for _ in range(2))
    varies = "static" not in options
    assert first.value.shape == (3, 4, 3)
    steps = [first.value[:, t] for t in range(4)]
    for t in range(1, 4):
        assert np.array_equal(steps[0], steps[t]) != varies
    if options["class"] == "random":  # rand_int has other ones in each training step
        assert np.array_equal(first.value, second.value) != varies


def test_rand_int_ranges_and_axes():
    net = {
        "low": {"class": "constant", "value": -2},
        "output": {"class": "rand_int", "shape": [batch_dim, TIME, 50], "minval": "low", "maxval": 3, "from": "data"},
        "s": {"class": "rand_int", "shape": [batch_dim], "maxval": 7, "sparse_dim": LABELS, "is_output_layer": True},
        "t": {"class": "rand_int", "shape": [2, 3], "maxval": 2, "dtype": "int64", "is_output_layer": True},
    }
    result = run(net)
    assert set(result["output"].value.ravel()) == {-2, -1, 0, 1, 2} and result["output"].axes == ("B", "T", "F")
    assert result["s"].axes == ("B",) and result["t"].axes == ("S", "F") and result["t"].value.dtype == "int64"


@pytest.mark.parametrize(
    "options,message",
    [
        ({"distribution": "uniform"}, "needs maxval"),
        ({"distribution": "gamma"}, "distribution.*gamma"),
        ({"distribution": "uniform", "bound": 1, "maxval": 2}, "bound and maxval exclude each other"),
        ({"distribution": "uniform", "mean": 1, "maxval": 2}, "mean and maxval exclude each other"),
        ({"distribution": "uniform", "minval": 1}, "maxval is missing"),
        ({"distribution": "normal", "bound": 1}, "bound is for distribution 'uniform'"),
        ({"distribution": "normal", "dtype": "int32"}, "has no int32 numbers"),
        ({"distribution": "uniform", "dtype": "int32", "bound": 3}, "int32 numbers need maxval"),
        ({"distribution": "uniform", "dtype": "int32", "maxval": 0}, "no number from minval 0 to maxval 0"),
        ({"distribution": "uniform", "dtype": "int32", "maxval": 2.5}, "maxval is 2.5"),
        ({"distribution": "normal", "stddev": "data"}, "stddev is the layer 'data'.*single number"),
        ({"distribution": "normal", "seed": []}, "seed.*one to three"),
        ({"distribution": "normal", "seed": "x"}, "seed"),
        ({"distribution": "normal", "algorithm": "threefry"}, "algorithm"),
        ({"distribution": "normal", "auto_update_state": True}, "auto_update_state is for explicit_state"),
        ({"distribution": "normal", "explicit_state": "data"}, "must be int64"),
        ({"distribution": "normal", "explicit_state": "st", "auto_update_state": True}, "needs a variable"),
        ({"distribution": "normal", "explicit_state": "st", "seed": 1}, "seed and static have no effect"),
        ({"distribution": "normal", "shape": [-1]}, "at least 0"),
        ({"distribution": "normal", "shape": [FEATURE, FEATURE]}, "twice"),
        ({"distribution": "normal", "shape": [SpatialDim("unknown")]}, "lengths of the dim"),
        ({"distribution": "normal", "feature_dim": STATIC}, "is not in shape"),
        ({"distribution": "normal", "sparse_dim": LABELS}, "labels must be int32 or int64"),
        ({"distribution": "normal", "shape": 3}, "shape"),
    ],
)
def test_mistakes(options, message):
    layer = {"class": "random", "shape": [FEATURE], **options}
    with pytest.raises(ConfigError, match=r"Layer 'output' \(class 'random'\).*" + message):
        template({"output": layer, "st": {"class": "random_state_init"}})


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "rand_int", "shape": [3]}, "maxval"),
        ({"class": "rand_int", "shape": [3], "maxval": 0}, "no number from"),
        ({"class": "rand_int", "shape": [3], "maxval": 1.5}, "maxval is 1.5"),
        ({"class": "rand_int", "shape": [3], "maxval": float("inf")}, "maxval is inf"),
        ({"class": "rand_int", "shape": [3], "maxval": 3, "minval": float("nan")}, "minval is nan"),
        ({"class": "rand_int", "shape": [3], "maxval": "data"}, "single number"),
        ({"class": "random_state_init", "seed": [1, 2, 3, 4]}, "one to three"),
        ({"class": "random_state_init", "n_out": 4}, "has 3 numbers"),
        ({"class": "random_state_init", "from": "data"}, "takes no sources"),
    ],
)
def test_mistakes_of_the_others(layer, message):
    fails(layer, message)
