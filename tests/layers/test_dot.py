"""`dot`, `weighted_sum` and `elemwise_prod`."""

import numpy as np
import pytest

from returnn_tf import Config, Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, net_of, output, run, template

X, WIDE = feed()["data"], feed()["wide"]
H = FeatureDim("h", 5)
V = {"class": "variable", "shape": [FEATURE, H], "init": "glorot_uniform"}


def dot(*sources, **options):
    return {"class": "dot", "from": list(sources), **options}


def test_axes_are_sorted_by_the_dims():
    """Batch and time are common, the static axis only in the first source."""
    result = output(dot("data:wide", "data", reduce=FEATURE))
    assert result.axes == ("B", "T", "F")
    np.testing.assert_allclose(result.value, np.einsum("btsf,btf->bts", WIDE, X), rtol=1e-5)


HEADS, OTHER_TIME = FeatureDim("heads", 2), SpatialDim("other")
EXTERN = {
    "q": {"dim_tags": [batch_dim, HEADS, TIME, FEATURE], "time_dim_axis": 2, "feature_dim_axis": 3},
    "k": {"dim_tags": [batch_dim, HEADS, OTHER_TIME, FEATURE], "time_dim_axis": 2, "feature_dim_axis": 3},
    "s": {"dim_tags": [batch_dim, STATIC, TIME, FEATURE], "time_dim_axis": 2, "feature_dim_axis": 3},
    "x": {"dim_tags": [batch_dim, TIME, FEATURE]},
    "y": {"dim_tags": [batch_dim, OTHER_TIME, FEATURE]},
    "z": {"dim_tags": [batch_dim, FEATURE]},
}


@pytest.mark.parametrize(
    "sources, options, axes",
    [
        (["s", "s"], {"var1": "T", "var2": "T"}, "BFTT"),  # of two times the static one is the feature axis
        (["q", "k"], {}, "BFTT"),
        (["q", "k"], {"var1": "T", "var2": "T"}, "BFTT"),
        (["x", "y"], {}, "BTF"),  # no static one: the one besides the time
        (["z", "y"], {}, "BT"),  # the time is no feature axis
        (["y", "z"], {}, "BT"),
        (["z", "s"], {}, "BFT"),
        (["s", "z"], {}, "BFT"),
        (["z", "s"], {"add_var2_if_empty": True}, "BFT"),
        (["x", "z"], {"add_var2_if_empty": True}, "BTF"),
    ],
)
def test_feature_axis(sources, options, axes):
    """It is that of features, else the last static one, else the last one besides the time."""
    layer = dot(*["data:" + name for name in sources], red1="F", red2="F", **options)
    assert "".join(template({"output": layer}, extern_data=EXTERN).axis_kinds) == axes


CHUNK, LEFT, QUERIES, ROWS = (
    SpatialDim("chunk", 5),
    SpatialDim("left", 7),
    SpatialDim("queries", 4),
    SpatialDim("rows", 2),
)
CHUNKS = {
    "a": {"dim_tags": [batch_dim, CHUNK, ROWS, FEATURE], "time_dim_axis": 1},
    "b": {"dim_tags": [batch_dim, LEFT, ROWS, FEATURE], "time_dim_axis": 1},
    "plain": {"dim_tags": [batch_dim, ROWS, FEATURE], "time_dim_axis": None},
    "x": {"dim_tags": [batch_dim, TIME, ROWS, FEATURE]},
    "c": {"dim_tags": [batch_dim, CHUNK, QUERIES], "time_dim_axis": 1},
    "w": {"dim_tags": [batch_dim, QUERIES, ROWS, CHUNK], "time_dim_axis": 3},
}


@pytest.mark.parametrize(
    "sources, reduce, time, feature",
    [
        ("ab", FEATURE, CHUNK, LEFT),
        ("ba", FEATURE, LEFT, CHUNK),
        (["plain", "a"], FEATURE, CHUNK, ROWS),
        (["a", "plain"], FEATURE, CHUNK, ROWS),
        ("xa", FEATURE, TIME, CHUNK),
        ("wa", CHUNK, None, FEATURE),
        ("ac", CHUNK, None, FEATURE),
        ("wb", ROWS, CHUNK, FEATURE),
    ],
)
def test_time_axis(sources, reduce, time, feature):
    """That of the first source that still has it; it may be static, such as a chunk."""
    network = {"output": dot(*("data:" + name for name in sources), reduce=reduce)}
    data = (
        plan_from_config(Config({"extern_data": CHUNKS, "network": network, "behavior_version": 21}))
        .by_path()["output"]
        .output
    )
    assert (data.time_dim, data.feature_dim) == (time, feature)


def test_softmax_over_frames_of_a_chunk():
    """Without the option axis, as it is the time axis."""
    network = {
        "energy": dot("data:a", "data:b", reduce=FEATURE),
        "output": {"class": "softmax_over_spatial", "from": "energy"},
    }
    net = Network.from_config(Config({"extern_data": CHUNKS, "network": network, "behavior_version": 21}))
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=(2, n, 2, 3)).astype("float32") for n in (5, 7))
    y = np.exp(np.einsum("bchf,blhf->bhlc", a, b))
    result = net.run({"a": a, "b": b}).layers["output"].value
    np.testing.assert_allclose(result, y / y.sum(axis=-1, keepdims=True), rtol=1e-4)


def test_sum_over_time_is_masked_in_either_order():
    both = [STATIC, FEATURE]
    first = output(dot("data:wide", "data", red1="T", red2="T", var1=both, var2=FEATURE)).value
    second = output(dot("data", "data:wide", red1="T", red2="T", var1=FEATURE, var2=both)).value
    for b, n in enumerate(LENS):
        expected = np.einsum("tsf,tg->sfg", WIDE[b, :n], X[b, :n])
        np.testing.assert_allclose(first[b], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(second[b], expected.transpose(2, 0, 1), rtol=1e-4, atol=1e-6)


def test_without_mask():
    value = output(dot("data", "data", red1="T", red2="T", var1=FEATURE, var2=FEATURE, use_mask=False)).value
    np.testing.assert_allclose(value, np.einsum("btf,btg->bfg", X, X), rtol=1e-4)


@pytest.mark.parametrize("add", [False, True, None])
def test_add_var2_if_empty(add):
    layer = dot("data", "data", red1="F", red2="F", var1=None, var2=None, add_var2_if_empty=add)
    for version in (2, 21):
        result = output(layer, behavior_version=version)
        has_axis = version == 2 if add is None else add
        assert result.value.shape == ((3, 4, 1) if has_axis else (3, 4))
        assert result.axes == (("B", "T", "F") if has_axis else ("B", "T"))


def test_old_defaults():
    """red1 = -1, red2 = -2, var1 = -2, var2 = -1"""
    network = {"v": V, "b": dot("data", "data", red1="T", red2="T", var1="F", var2="F"), "output": dot("data", "b")}
    result = run(network, behavior_version=2)["output"]
    b = np.stack([X[i, :n].T @ X[i, :n] for i, n in enumerate(LENS)])
    np.testing.assert_allclose(result.value, X @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse_first", [True, False])
def test_sparse_source_looks_up_rows(sparse_first):
    labels = FeatureDim("labels", 5)
    network = {"v": {"class": "variable", "shape": [labels, H], "init": "glorot_uniform"}}
    sources = ("labels", "v") if sparse_first else ("v", "labels")
    network["labels"] = {"class": "reinterpret_data", "set_sparse_dim": labels, "from": "data:labels"}
    network["output"] = dot(*sources, reduce=labels)
    net = net_of(network)
    value = net.run(feed()).layers["output"].value
    expected = net.get_param_values()["v/v"][feed()["labels"]]
    np.testing.assert_array_equal(value, expected if sparse_first else expected.transpose(0, 2, 1))


def test_sparse_source_with_common_axes():
    labels = FeatureDim("labels", 3)
    network = {
        "labels": {"class": "reinterpret_data", "set_sparse_dim": labels, "from": "data:ints"},
        "x": {"class": "linear", "activation": None, "out_dim": labels, "from": "data:wide"},
        "output": dot("labels", "x", reduce=labels),
        "all": {"class": "copy", "from": "x", "is_output_layer": True},
    }
    layers = run(network)
    x, index = layers["all"].value, feed()["ints"]
    expected = np.take_along_axis(x, index[:, :, None, None], axis=3)[..., 0]
    np.testing.assert_array_equal(layers["output"].value, expected)


@pytest.mark.parametrize(
    "layer,match",
    [
        (dot("data"), "exactly two sources"),
        (dot("data", "data:other", red1="F", red2="F", var1=None, var2="T"), "time of source 1.*neither.* lacks it"),
        (dot("data", "data:other", red1="T", red2="T"), "different dims"),
        (dot("data", "data:wide", red1="F", red2=["F", STATIC]), "red1 is 1 axes .* red2 is 2"),
        (dot("data", "data"), "axes to sum over are missing"),
        (dot("data", "data", reduce=FEATURE, red1="F"), "not both"),
        (dot("data", "data", reduce=STATIC), "Axis s=2 means no axis of"),
        (dot("data", "data:ints", red1="T", red2="T"), "Cast one"),
        ({"class": "weighted_sum", "axes": "T", "from": "data"}, "must have a static size"),
        ({"class": "weighted_sum", "axes": STATIC, "size": 2, "keep_dims": False, "from": "data"}, "means no axis"),
        ({"class": "elemwise_prod", "axes": "F", "size": 4, "from": "data"}, r"size is 4, but .* \[3\]"),
    ],
)
def test_errors(layer, match):
    fails(layer, match)


def test_old_versions_match_static_axes_by_size():
    network = {
        "other": {"class": "linear", "activation": None, "out_dim": FeatureDim("g", 3), "from": "data"},
        "output": dot("data", "other", red1="F", red2="F", var1=None, var2=None),
    }
    assert template(network, behavior_version=13).rank == 2
    with pytest.raises(Exception, match="different dims"):
        template(network, behavior_version=14)


@pytest.mark.parametrize("padding,frames", [("same", 3), ("valid", 2)])
def test_weighted_sum_with_window(padding, frames):
    layer = {"class": "weighted_sum", "axes": FEATURE, "size": 2, "padding": padding, "from": "data"}
    net = net_of({"output": layer})
    assert net.get_param_values()["output/W"].tolist() == [0.5, 0.5]
    net.set_param_values({"output/W": np.array([2.0, -1.0], "float32")})
    x = np.pad(X, [(0, 0), (0, 0), (0, 1)])
    expected = (2 * x[..., :-1] - x[..., 1:])[..., :frames]
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, expected, rtol=1e-5)


def test_weighted_sum_of_two_axes():
    net = net_of({"output": {"class": "weighted_sum", "axes": [FEATURE, STATIC], "from": "data:wide"}})
    w = np.arange(6).reshape(3, 2).astype("float32")
    net.set_param_values({"output/W": w})
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, np.einsum("btsf,fs->bt", WIDE, w), rtol=1e-5)


def test_weighted_sum_keeps_dims():
    data = template({"output": {"class": "weighted_sum", "axes": "F", "keep_dims": True, "from": "data"}})
    assert data.static_shape == (None, None, 1) and data.feature_axis == 2 and data.dims[1] is TIME


def test_weighted_sum_along_time():
    layer = {"class": "weighted_sum", "axes": "T", "size": 3, "padding": "valid", "from": "data"}
    result = output(layer)
    np.testing.assert_array_equal(result.sizes[1], [2, 0, 1])
    np.testing.assert_allclose(result.value[0, 0], X[0, :3].mean(0), rtol=1e-5)
