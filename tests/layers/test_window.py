"""`window`, `fold`, `time_chunking` and `time_unchunking`."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, gradient, net_of, output, run, template

X, WIDE = feed()["data"], feed()["wide"]


def window(**options):
    return {"class": "window", "from": "data", **options}


def expected_window(x, size, left, frames, stride=1):
    """[batch, time, ...] -> [batch, window, frames, ...]"""
    padded = np.pad(x, [(0, 0), (left, size)] + [(0, 0)] * (x.ndim - 2))
    return np.stack([padded[:, i : i + frames * stride : stride][:, :frames] for i in range(size)], axis=1)


@pytest.mark.parametrize(
    "options,size,left,lens,stride",
    [
        ({"window_size": 4}, 4, 1, [4, 2, 3], 1),
        ({"window_size": 3, "window_right": 2}, 3, 0, [4, 2, 3], 1),
        ({"window_left": 2, "window_right": 1}, 4, 2, [4, 2, 3], 1),
        ({"window_size": 3, "stride": 3}, 3, 1, [2, 1, 1], 3),
        ({"window_size": 2, "padding": "valid", "stride": 2}, 2, 0, [2, 1, 1], 2),
        ({"window_size": 9, "padding": "valid"}, 9, 0, [0, 0, 0], 1),
    ],
)
def test_window(options, size, left, lens, stride):
    result = output(window(**options))
    expected = expected_window(X, size, left, max(lens), stride)
    if stride == 1:
        assert result.axes == ("B", "S", "T", "F")
    else:
        assert result.axes == ("B", "T", "S", "F")
        expected = expected.swapaxes(1, 2)
    np.testing.assert_array_equal(result.sizes[result.axes.index("T")], lens)
    np.testing.assert_array_equal(result.value, expected)


@pytest.mark.parametrize("version,axes", [(17, "B,T,S,S,F"), (18, "B,S,S,T,F")])
@pytest.mark.parametrize("stride", [1, 2])
def test_window_along_a_static_axis(version, axes, stride):
    layer = window(window_size=3, window_left=0, axis=STATIC, stride=stride, **{"from": "data:wide"})
    result = output(layer, behavior_version=version)
    assert ",".join(result.axes) == axes
    frames = -(-2 // stride)
    by_window = expected_window(WIDE.transpose(0, 2, 1, 3), 3, 0, frames, stride)  # [batch, window, static, time, ...]
    in_order = (0, 1, 2, 3, 4) if stride == 1 else (0, 2, 1, 3, 4)
    expected = by_window.transpose(in_order if version == 18 else (0, 3, 2, 1, 4))
    np.testing.assert_array_equal(result.value, expected)


def test_window_along_the_features():
    result = output(window(window_size=2, axis="F"))
    expected = expected_window(X.transpose(0, 2, 1), 2, 0, 3)  # [batch, window, features, time]
    assert result.axes == ("B", "S", "F", "T")
    np.testing.assert_array_equal(result.value, expected)


@pytest.mark.parametrize(
    "version, options, dims",
    [
        (18, {}, ["w", TIME, batch_dim, FEATURE]),
        (18, {"out_spatial_dim": TIME}, [TIME, "w", batch_dim, FEATURE]),
        (18, {"stride": 2}, [TIME.ceildiv_right(2), "w", batch_dim, FEATURE]),
        (17, {}, [batch_dim, TIME, "w", FEATURE]),
        (17, {"stride": 2}, [batch_dim, TIME.ceildiv_right(2), "w", FEATURE]),
    ],
)
def test_order_of_the_axes(version, options, dims):
    dim = SpatialDim("w", 3)
    data = template({"output": window(window_dim=dim, **options)}, behavior_version=version)
    assert list(data.dims) == [dim if d == "w" else d for d in dims]
    assert data.feature_dim is FEATURE and data.time_dim is dims[dims.index("w") + (-1 if dims[0] != "w" else 1)]


@pytest.mark.parametrize("stride, dims", [(1, "wtbf"), (2, "twbf")])
def test_window_behind_the_features(stride, dims):
    """The window becomes the feature axis."""
    extern_data = {"data": {"dim_tags": [batch_dim, FEATURE, TIME]}}
    layers = {
        "w": window(window_size=3, stride=stride),
        "output": {"class": "linear", "n_out": 2, "activation": None, "from": "w"},
    }
    net = net_of(layers, extern_data=extern_data)
    assert net.params["output/W"].shape == (3, 2)
    assert net.plan.by_path()["w"].output.feature_axis == dims.index("w")


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding,stride", [("same", 1), ("same", 2), ("valid", 1), ("valid", 2)])
def test_fold_adds_what_window_took(mode, padding, stride):
    dim, frames = SpatialDim("window", 3), SpatialDim("frames")
    network = {
        "w": window(window_dim=dim, padding=padding, stride=stride, out_spatial_dim=frames, is_output_layer=True),
        "output": {"class": "fold", "in_spatial_dim": frames, "window_dim": dim, "padding": padding, "from": "w"},
    }
    network["output"].update(mode=mode, stride=stride)
    layers = run(network)
    windows, result = layers["w"], layers["output"]
    left, lens = (0, (windows.sizes[1] - 1) * stride + 3) if padding == "valid" else (1, windows.sizes[1] * stride)
    np.testing.assert_array_equal(result.sizes[1], lens)
    for b, count in enumerate(windows.sizes[1]):
        total, times = np.zeros([20, 3]), np.zeros([20, 1])
        for t in range(count):
            for i in range(3):
                total[10 + t * stride + i - left] += windows.value[b, t, i]
                times[10 + t * stride + i - left] += 1
        expected = (total / times.clip(1) if mode == "mean" else total)[10 : 10 + lens[b]]
        np.testing.assert_allclose(result.value[b, : lens[b]], expected, rtol=1e-5, atol=1e-6)


def test_fold_gives_the_dim_of_the_window_back():
    dim = SpatialDim("window", 2)
    network = {"w": window(window_dim=dim, padding="valid")}
    network["output"] = {"class": "fold", "window_dim": dim, "padding": "valid", "out_spatial_dim": TIME, "from": "w"}
    assert template(network).time_dim is TIME


@pytest.mark.parametrize("size,step", [(3, 2), (2, 2), (2, 3), (4, 1), (9, 5)])
def test_chunks_and_back(size, step):
    chunks = {"class": "time_chunking", "chunk_size": size, "chunk_step": step, "from": "data", "is_output_layer": True}
    layers = run({"c": chunks, "output": {"class": "time_unchunking", "chunking_layer": "c", "from": "c"}})
    count = max(-(-(4 - size) // step), 0) + 1
    value = layers["c"].value
    assert value.shape == (3 * count, size, 3)
    padded = np.pad(X, [(0, 0), (0, 20), (0, 0)])
    for b in range(3):
        for c in range(count):
            np.testing.assert_array_equal(value[b * count + c], padded[b, c * step : c * step + size])
            assert layers["c"].sizes[1][b * count + c] == min(max(LENS[b] - c * step, 0), size)
    np.testing.assert_array_equal(layers["output"].sizes[1], LENS)
    covered = [t for t in range(4) if any(c * step <= t < c * step + size for c in range(count))]
    np.testing.assert_allclose(layers["output"].value[:, covered], X[:, covered], rtol=1e-5)


def test_sums_over_chunks_are_masked():
    chunks = {"class": "time_chunking", "chunk_size": 2, "chunk_step": 2, "from": "data"}
    result = run({"c": chunks, "output": {"class": "reduce", "mode": "sum", "axis": "T", "from": "c"}})["output"]
    expected = [X[b, s : min(s + 2, n)].sum(0) for b, n in enumerate(LENS) for s in (0, 2)]
    np.testing.assert_allclose(result.value, expected, rtol=1e-5)


def test_one_graph_for_all_lengths():
    net = net_of({"output": window(window_size=3)})
    for frames in (4, 1):
        arrays = {"data": X[:, :frames], "data/size0": LENS.clip(0, frames)}
        assert net.run(arrays).layers["output"].value.shape == (3, 3, frames, 3)


def test_gradient_reaches_every_frame():
    assert np.isfinite(gradient(window(window_size=3, **{"from": "a"}))).all()


@pytest.mark.parametrize(
    "layer,match",
    [
        (window(), "size of the window is missing"),
        (window(window_size=3, window_left=3, window_right=3), "window_left 3 .* is not window_size 3"),
        (window(window_size=3, padding="full"), "'same' or 'valid'"),
        (window(window_size=3, stride=0), "stride must be at least 1"),
        (window(window_size=3, axis="B"), "batch axis"),
        (window(window_size=2, window_dim=SpatialDim("w", 3)), "window_size is 2, but window_dim has size 3"),
        (
            {"class": "fold", "mode": "max", "window_dim": STATIC, "from": "data:wide"},
            "option 'mode' is 'max'. Known: sum, mean",
        ),
        ({"class": "fold", "window_dim": "T", "in_spatial_dim": STATIC, "from": "data:wide"}, "static size"),
        ({"class": "time_chunking", "chunk_size": 0, "chunk_step": 1, "from": "data"}, "must be positive"),
        (
            {"class": "time_chunking", "chunk_size": 2, "chunk_step": 1, "axis": "F", "from": "data"},
            "other than batch or feature",
        ),
        ({"class": "time_unchunking", "chunking_layer": "data", "from": "data"}, "layer of class time_chunking"),
    ],
)
def test_errors(layer, match):
    fails(layer, match)


def test_unchunking_needs_the_axes_of_the_chunks():
    chunks = {"class": "time_chunking", "chunk_size": 3, "chunk_step": 2, "from": "data"}
    network = {"c": chunks, "output": {"class": "time_unchunking", "chunking_layer": "c", "from": "data"}}
    with pytest.raises(Exception, match="must have the axes"):
        template(network)
