"""`reduce`, `math_norm`, `reduce_out`, `top_k`, `search_sorted`, `cumsum` and the softmax over frames."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, gradient, output, run, template

X = feed()["data"]
ROWS = [X[b, :n] for b, n in enumerate(LENS)]


def reduce(**options):
    return {"class": "reduce", "from": "data", **options}


@pytest.mark.parametrize("mode,func", [("sum", np.sum), ("avg", np.mean), ("MAX", np.max), ("min", np.min)])
def test_frames_after_the_end_do_not_count(mode, func):
    result = output(reduce(mode=mode, axis="T"))
    assert result.axes == ("B", "F")
    np.testing.assert_allclose(result.value, [func(row, axis=0) for row in ROWS], rtol=1e-5)


def test_arg_modes_are_sparse_in_the_reduced_dim():
    result = output(reduce(mode="argmax", axis="T"))
    assert result.axes == ("B", "S") and result.value.dtype == np.int32
    np.testing.assert_array_equal(result.value, [row.argmax(0) for row in ROWS])
    assert template({"output": reduce(mode="argmax", axis="T")}).sparse_dim is TIME


def test_batch_then_time():
    """Without a batch axis the frames are those of all sequences, so all of them count."""
    network = {"a": reduce(mode="sum", axis="B"), "output": reduce(mode="mean", axis="T", **{"from": "a"})}
    result = run(network)["output"]
    np.testing.assert_allclose(result.value, X.sum(0).mean(0), rtol=1e-5)


def test_time_major_batch_axis():
    result = output(reduce(mode="sum", axis="F", enforce_batch_dim_axis=1))
    assert template({"output": reduce(mode="sum", axis="F", enforce_batch_dim_axis=1)}).batch_axis == 1
    np.testing.assert_allclose(result.value, X.sum(2), rtol=1e-5)


def test_old_axis_name():
    result = output(reduce(mode="sum", axes="s:1", **{"from": "data:wide"}), behavior_version=0)
    np.testing.assert_allclose(result.value, feed()["wide"].sum(2), rtol=1e-5)


def test_keep_dims_keeps_the_marks():
    data = template({"output": reduce(mode="sum", axis=["T", "F"], keep_dims=True)})
    assert (data.time_axis, data.feature_axis, data.static_shape) == (1, 2, (None, 1, 1))


def test_gradient_stays_inside_of_the_sequences():
    grad = gradient({"class": "reduce", "mode": "mean", "axis": "T", "from": "a"})
    np.testing.assert_allclose(grad, sum(2 * row.mean(0) for row in ROWS), rtol=1e-5)


@pytest.mark.parametrize(
    "layer,match",
    [
        (reduce(mode="maximum", axis="T"), "unknown mode 'maximum'.*max"),
        (reduce(mode="max"), "exactly one of the options 'axis' and 'axes'"),
        (reduce(mode="max", axis="T", axes="F"), "exactly one"),
        (reduce(mode="max", axis="stag:foo"), "'stag:foo' means no axis"),
        (reduce(mode="argmax", axis=["T", "F"]), "over a single axis, got 2"),
        (reduce(mode="max", axis="T", n_out=5), "n_out is 5, but the result is"),
        ({"class": "math_norm", "p": 0, "axis": "F", "from": "data"}, "p must be positive"),
        ({"class": "reduce_out", "mode": "max", "num_pieces": 2, "from": "data"}, "size 3 is not divisible"),
        ({"class": "top_k", "axis": "F", "k": 4, "from": "data"}, "k is 4, but there are only 3"),
        ({"class": "search_sorted", "sorted_sequence": "data", "values": "data:numbers", "axis": "T"}, "Cast one"),
        (
            {"class": "search_sorted", "sorted_sequence": "data", "values": "data:other", "axis": "F"},
            "is not in values",
        ),
        ({"class": "softmax_over_spatial", "window_start": 1, "from": "data"}, "go together"),
        ({"class": "softmax_over_spatial", "start": "data:other", "from": "data"}, "start is .* not one of"),
        ({"class": "softmax_over_spatial", "from": "data:numbers"}, "no time axis"),
    ],
)
def test_errors(layer, match):
    fails(layer, match)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "options,first,last",
    [({}, [0, 0, 0], LENS), ({"start": "data:numbers"}, [1, 0, 2], LENS), ({"start": 1}, [1, 1, 1], LENS)]
    + [({"window_start": "data:numbers", "window_size": 2}, [1, 0, 2], [3, 2, 3])]
    + [({"window_start": 1, "window_size": "data:numbers"}, [1, 1, 1], [2, 1, 3])]
    + [({"use_time_mask": False}, [0, 0, 0], [4, 4, 4])],
)
def test_softmax_over_frames(options, first, last):
    result = output({"class": "softmax_over_spatial", "energy_factor": 0.5, "from": "data", **options})
    assert result.axes == ("B", "F", "T")
    expected = np.zeros([3, 3, 4], "float32")
    for b in range(3):
        if last[b] > first[b]:
            expected[b, :, first[b] : last[b]] = softmax(0.5 * X[b, first[b] : last[b]].T)
    np.testing.assert_allclose(result.value, expected, rtol=1e-5, atol=1e-7)


def test_softmax_of_an_empty_window_has_a_gradient():
    layer = {"class": "softmax_over_spatial", "window_start": 0, "window_size": "data:numbers", "from": "a"}
    assert np.isfinite(gradient(layer)).all()


def test_batch_softmax_sums_to_one_per_sequence():
    value = output({"class": "batch_softmax", "from": "data"}).value
    for b, n in enumerate(LENS):
        np.testing.assert_allclose(value[b, :n].ravel(), softmax(X[b, :n].ravel()), rtol=1e-5)


@pytest.mark.parametrize("k", [2, "k"])
def test_top_k_over_frames(k):
    network = {
        "k": {"class": "constant", "value": 2, "dtype": "int32"},
        "output": {"class": "top_k", "axis": "T", "k": k, "from": "data"},
        "i": {"class": "copy", "from": "output/indices", "is_output_layer": True},
    }
    layers = run(network)
    for b, row in enumerate(ROWS):
        np.testing.assert_array_equal(layers["output"].value[b], -np.sort(-row.T, axis=1)[:, :2])
        np.testing.assert_array_equal(layers["i"].value[b], np.argsort(-row.T, axis=1)[:, :2])


def test_top_k_over_two_axes():
    network = {"output": {"class": "top_k", "axis": [STATIC, FEATURE], "k": 4, "from": "data:wide"}}
    for i in range(2):
        network["i%d" % i] = {"class": "copy", "from": "output/indices%d" % i, "is_output_layer": True}
    layers, x = run(network), feed()["wide"]
    s, f = layers["i0"].value, layers["i1"].value
    picked = x[np.arange(3)[:, None, None], np.arange(4)[:, None], s, f]
    np.testing.assert_array_equal(picked, layers["output"].value)
    np.testing.assert_array_equal(picked, -np.sort(-x.reshape(3, 4, 6), axis=-1)[..., :4])


@pytest.mark.parametrize("side", ["left", "right"])
def test_search_sorted_in_ragged_sequences(side):
    ints = np.array([[0, 1, 1, 2], [1, 2, 0, 0], [0, 0, 5, 0]])
    layer = {"class": "search_sorted", "sorted_sequence": "data:ints", "values": "data:numbers", "axis": "T"}
    result = output({**layer, "side": side}, feed(ints=ints, numbers=[1, 7, 0]))
    expected = [np.searchsorted(ints[b, :n], v, side=side) for b, n, v in zip(range(3), LENS, [1, 7, 0])]
    np.testing.assert_array_equal(result.value, expected)


def test_search_sorted_keeps_the_axes_of_the_values():
    network = {
        "abs": {"class": "eval", "eval": "tf.abs(source(0))", "from": "data"},
        "sorted": {"class": "cumsum", "axis": "F", "from": "abs"},
        "values": {"class": "reduce", "mode": "max", "axis": FEATURE, "from": "data:wide"},
        "output": {"class": "search_sorted", "sorted_sequence": "sorted", "values": "values", "axis": "F"},
    }
    rows, values = np.cumsum(np.abs(X), axis=2), feed()["wide"].max(3)
    expected = [[np.searchsorted(rows[b, t], values[b, t]) for t in range(4)] for b in range(3)]
    np.testing.assert_array_equal(run(network)["output"].value, expected)


def test_cumsum_with_summand():
    layer = {"class": "cumsum", "reverse": True, "additional_left_summand_per_element": 1, "from": "data"}
    np.testing.assert_allclose(output(layer).value, (X + 1)[:, ::-1].cumsum(1)[:, ::-1], rtol=1e-5)


def test_bound_dim_of_reduce_out():
    dim = SpatialDim("out")
    data = template(
        {"output": {"class": "reduce_out", "mode": "mean", "num_pieces": 3, "out_dim": dim, "from": "data"}}
    )
    assert data.dim == 1
