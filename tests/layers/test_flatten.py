"""`flatten_batch`, `unflatten_batch`, `unflatten_nd` against numpy."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim
from tests.layers.nets import LENS, fails, feed, gradient, output, run, template


@pytest.mark.parametrize("batch_major", [True, False])
def test_flatten_and_back(batch_major):
    net = {
        "f": {
            "class": "flatten_batch",
            "axis": "T",
            "batch_major": batch_major,
            "from": "data",
            "is_output_layer": True,
        },
        "output": {"class": "unflatten_batch", "from": "f"},
    }
    result, x = run(net), feed()["data"]
    order = [(b, t) for b in range(3) for t in range(LENS[b])]
    if not batch_major:
        order.sort(key=lambda item: item[1])
    np.testing.assert_array_equal(result["f"].value, [x[b, t] for b, t in order])
    assert result["output"].axes == ("B", "T", "F")
    np.testing.assert_array_equal(result["output"].sizes[1], LENS)
    mask = np.arange(4) < LENS[:, None]
    np.testing.assert_array_equal(result["output"].value, x * mask[:, :, None])


@pytest.mark.parametrize("batch_major", [True, False])
def test_static_axis(batch_major):
    net = {
        "f": {"class": "flatten_batch", "axis": "dim:2", "batch_major": batch_major, "from": "data:wide"},
        "output": {"class": "unflatten_batch", "from": "f"},
    }
    np.testing.assert_array_equal(run(net)["output"].value, feed()["wide"].transpose(0, 2, 1, 3))


def test_gradient_ignores_padding():
    got = gradient({"class": "flatten_batch", "axis": "T", "from": "a"})
    mask = np.arange(4) < LENS[:, None]
    np.testing.assert_allclose(got, (2 * feed()["data"] * mask[:, :, None]).sum((0, 1)), rtol=1e-5)


def test_flattened_sources_fit_together():
    net = {
        "a": {"class": "flatten_batch", "from": "data"},
        "b": {"class": "flatten_batch", "from": "data:wide"},
        "output": {"class": "combine", "kind": "add", "from": ["b", "a"]},
    }
    assert run(net)["output"].value.shape == (LENS.sum(), 2, 3)


def test_errors():
    fails({"class": "flatten_batch", "axis": "B", "from": "data"}, "needs a batch axis and another axis to pack")
    fails({"class": "unflatten_batch", "from": "data"}, "must come from a flatten_batch layer")


def by_loops(x, sizes):
    shape = sizes.max(0)
    y = np.zeros((3, *shape, 3), "float32")
    for b, (height, width) in enumerate(sizes):
        for i in range(height):
            for j in range(width):
                y[b, i, j] = x[b, i * width + j]
    return y


def unflat_net(**options):
    return {
        "hw": {"class": "stack", "from": ["h", "w"], "axis": 1},
        "h": {"class": "eval", "eval": "source(0) + 1", "from": "data:numbers"},
        "w": {"class": "eval", "eval": "source(0) * 0 + 2 - source(0) // 2", "from": "data:numbers"},
        "output": {"class": "unflatten_nd", "sizes": "hw", "num_axes": 2, "from": "data", **options},
    }


def test_unflatten_nd():
    sizes = np.array([[2, 2], [1, 2], [3, 1]])
    result = run(unflat_net())["output"]
    assert result.axes == ("B", "T", "T", "F")
    np.testing.assert_array_equal(result.sizes[1], sizes[:, 0])
    np.testing.assert_array_equal(result.sizes[2], sizes[:, 1])
    np.testing.assert_array_equal(result.value, by_loops(feed()["data"], sizes))


def test_unflatten_nd_with_declared_dims():
    a, b = SpatialDim("a"), SpatialDim("b")
    data = template(unflat_net(out_dims=[a, b]))
    assert data.dims[1:3] == (a, b)
    assert run(unflat_net(out_dims=[a, b]))["output"].value.shape == (3, 3, 2, 3)


def test_unflatten_nd_errors():
    layer = {"class": "unflatten_nd", "sizes": "data", "num_axes": 2, "from": "data"}
    fails(layer, r"integer sizes \[batch, num_axes\]")


def test_one_sequence():
    one = {k: v[:1] for k, v in feed().items()}
    assert output({"class": "flatten_batch", "from": "data"}, one).value.shape == (4, 3)
