"""Order and marks of the axes that layers give their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf import Config, ConfigError, Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.tensor import Data, FeatureDim, SpatialDim, batch_dim

TIME, FEAT, PLACE, INDEX = SpatialDim("time"), FeatureDim("feat", 4), SpatialDim("place", 3), SpatialDim("index", 2)
N = SpatialDim("n")
EXTERN = {
    "data": {"dim_tags": [batch_dim, TIME, FEAT]},
    "places": {"dim_tags": [batch_dim, TIME, PLACE, FEAT]},
    "index": {"dim_tags": [batch_dim, INDEX], "dtype": "int32"},
    "sizes": {"dim_tags": [batch_dim, N], "dtype": "int32"},
    "label": {"dim": 7, "sparse": True},
    "plain": {"shape": (None,), "time_dim_axis": 1},
}
LENS = [5, 3]


def planned(layers: dict[str, Any], extern_data: Any = EXTERN) -> Data:
    """Return the template of "output"."""
    config = Config({"extern_data": extern_data, "network": layers, "behavior_version": 21})
    return plan_from_config(config).by_path()["output"].output


def run(layers: dict[str, Any], *, n: int = 2, labels: int = 1) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the results, and the inputs.

    :param n: frames of "sizes"
    :param labels: frames of "label"
    """
    net = Network.from_config(Config({"extern_data": EXTERN, "network": layers, "behavior_version": 21}))
    rng = np.random.RandomState(1)
    feed = {
        "data": rng.normal(size=(2, 5, 4)).astype("float32"),
        "places": rng.normal(size=(2, 5, 3, 4)).astype("float32"),
        "plain": rng.normal(size=(2, 5)).astype("float32"),
        "index": np.array([[1, 0], [2, 2]], "int32"),
        "sizes": np.array([[2, 2, 1], [1, 3, 1]], "int32")[:, :n],
        "label": rng.randint(7, size=(2, labels)).astype("int32"),
    }
    feed.update({key + "/size0": np.array(LENS, "int32") for key in ("data", "places", "plain")})
    feed["sizes/size0"], feed["label/size0"] = np.array([n, n], "int32"), np.array([labels] * 2, "int32")
    return net.run(feed).layers, feed


HALF, TWO, ONE = SpatialDim("half"), SpatialDim("two", 2), SpatialDim("one", 1)
F2, G2 = FeatureDim("f2", 2), FeatureDim("g2", 2)


@pytest.mark.parametrize(
    "layer, axes, expected",
    [
        ({"class": "repeat", "axis": "F", "repetitions": 2}, "BFT", lambda x: x.repeat(2, 2).transpose(0, 2, 1)),
        ({"class": "repeat", "axis": "T", "repetitions": 2}, "BTF", lambda x: x.repeat(2, 1)),
        ({"class": "split_dims", "axis": FEAT, "dims": (FEAT, ONE)}, "BTFS", lambda x: x[..., None]),
        ({"class": "split_dims", "axis": FEAT, "dims": (F2, TWO)}, "BTFS", lambda x: x.reshape(2, 5, 2, 2)),
        ({"class": "split_dims", "axis": FEAT, "dims": (TWO, HALF)}, "BTSF", lambda x: x.reshape(2, 5, 2, 2)),
        ({"class": "split_dims", "axis": FEAT, "dims": (F2, G2)}, "BTSF", lambda x: x.reshape(2, 5, 2, 2)),
        ({"class": "split_dims", "axis": "F", "dims": (2, -1)}, "BTSF", lambda x: x.reshape(2, 5, 2, 2)),
        ({"class": "split_dims", "axis": "T", "dims": (TWO, HALF)}, "BSTF", lambda x: _padded(x).reshape(2, 2, 3, 4)),
        ({"class": "gather", "axis": "F", "position": "data:index"}, "BTS", lambda x: _gathered(x)),
        ({"class": "expand_dims", "axis": "F"}, "BTSF", lambda x: x[..., None]),
        ({"class": "reinterpret_data", "set_dim_tags": {"B": SpatialDim("new")}}, "TTF", lambda x: x),
        ({"class": "unflatten_nd", "sizes": "data:sizes", "num_axes": 2}, "BTTF", lambda x: _unflat(x)),
        ({"class": "merge_dims", "axes": ["F", "T"]}, "BF", lambda x: x.transpose(0, 2, 1).reshape(2, 20)),
    ],
)  # fmt: skip
def test_axes(layer: dict[str, Any], axes: str, expected: Any) -> None:
    found, feed = run({"output": {**layer, "from": "data"}})
    output, value = found["output"], expected(feed["data"])
    assert "".join(output.axes) == axes
    for axis, lens in output.sizes.items():  # frames after the end of a sequence may be anything
        if output.axes[0] == "B" and lens.ndim == 1:
            shape = [2] + [value.shape[axis] if a == axis else 1 for a in range(1, value.ndim)]
            mask = (np.arange(value.shape[axis]) < lens[:, None]).reshape(shape)
            output.value[:], value = np.where(mask, output.value, 0), np.where(mask, value, 0)
    np.testing.assert_allclose(output.value, value, rtol=1e-6)


def _padded(x: np.ndarray) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 1), (0, 0)])


def _gathered(x: np.ndarray) -> np.ndarray:
    return np.stack([x[0][:, [1, 0]], x[1][:, [2, 2]]])


def _unflat(x: np.ndarray) -> np.ndarray:
    y = np.zeros((2, 2, 3, 4), "float32")
    y[0, :2, :2] = x[0, :4].reshape(2, 2, 4)
    y[1, 0, :3] = x[1, :3]
    return y


def test_repeat_of_an_axis_behind_the_time() -> None:
    found, feed = run({"output": {"class": "repeat", "axis": PLACE, "repetitions": 2, "from": "data:places"}})
    assert "".join(found["output"].axes) == "BSTF"
    np.testing.assert_allclose(found["output"].value, feed["places"].repeat(2, 2).transpose(0, 2, 1, 3))


def test_split_of_merged_axes_gives_them_back() -> None:
    layers = {
        "merged": {"class": "merge_dims", "axes": [batch_dim, TIME], "from": "data"},
        "more": {"class": "eval", "eval": "source(0) + 1.0", "from": "merged"},
        "output": {"class": "split_dims", "axis": "B", "dims": (batch_dim, TIME), "from": "more"},
        "inner": {"class": "merge_dims", "axes": [PLACE, TIME], "from": "data:places"},
        "again": {"class": "split_dims", "axis": "stag:place", "dims": (PLACE, TIME), "from": "inner"},
    }
    found, feed = run({**layers, "again": {**layers["again"], "is_output_layer": True}})
    np.testing.assert_allclose(found["output"].value, feed["data"] + 1, rtol=1e-6)
    assert found["output"].sizes[1].tolist() == LENS
    np.testing.assert_allclose(found["again"].value, feed["places"].transpose(0, 2, 1, 3))
    assert found["again"].sizes[2].tolist() == LENS


@pytest.mark.parametrize(
    "layers, kwargs, message",
    [
        ({"output": {"class": "squeeze", "axis": "T", "from": "data:label"}}, {"labels": 3},
         "the axis time:label can only be removed where it has size 1"),
        ({"output": {"class": "unflatten_nd", "sizes": "data:sizes", "num_axes": 2, "from": "data"}}, {"n": 3},
         "num_axes is 2, but the number of sizes is"),
    ],
)  # fmt: skip
def test_sizes_are_checked_in_each_step(layers: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        run(layers, **kwargs)


def test_squeeze_of_a_dynamic_axis() -> None:
    found, feed = run({"output": {"class": "squeeze", "axis": "T", "from": "data:label"}})
    assert found["output"].axes == ("B",)
    assert found["output"].value.tolist() == feed["label"][:, 0].tolist()


SLICE = SpatialDim("slice")
FRAMES = {
    "i": {"class": "range_in_axis", "axis": "T", "from": "data"},
    "l": {"class": "length", "axis": "T", "from": "data"},
    "rest": {"class": "combine", "kind": "sub", "from": ["l", "i"], "allow_broadcast_all_sources": True},
    "size": {"class": "eval", "eval": "tf.clip_by_value(source(0) - 1, 1, 3)", "from": "rest"},
    "start": {"class": "eval", "eval": "source(0) * 0 + source(1)", "from": ["rest", "i"]},
    "s": {"class": "slice_nd", "start": "start", "size": "size", "out_spatial_dim": SLICE, "from": "data"},
}


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "min", "logsumexp", "argmax"])
@pytest.mark.parametrize("by_size", [True, False])
def test_reduction_over_slices_of_each_frame(mode: str, by_size: bool) -> None:
    layers = {**FRAMES, "output": {"class": "reduce", "mode": mode, "axis": SLICE, "from": "s"}}
    if not by_size:
        layers["s"] = {**FRAMES["s"], "size": None, "min_size": 1}
    found, feed = run(layers)
    functions: dict[str, Any] = {"argmax": np.argmax, "logsumexp": lambda x, axis: np.log(np.exp(x).sum(axis))}
    function = functions.get(mode) or getattr(np, mode)
    for b, n in enumerate(LENS):
        for t in range(n):
            size = min(max(n - t - 1, 1), 3) if by_size else n - t
            expected = function(feed["data"][b, t : t + size], axis=0)
            np.testing.assert_allclose(found["output"].value[b, t], expected, rtol=1e-5, atol=1e-5)


def test_softmax_over_slices_of_each_frame() -> None:
    layers = {**FRAMES, "output": {"class": "softmax_over_spatial", "axis": SLICE, "from": "s"}}
    found, feed = run(layers)
    assert "".join(found["output"].axes) == "BTFT"
    weights = np.exp(feed["data"][0, 1:4])  # the second frame of the first sequence has size 3
    np.testing.assert_allclose(found["output"].value[0, 1].T, weights / weights.sum(0), rtol=1e-5)
    np.testing.assert_allclose(found["output"].value[0, 4].T, [[1] * 4, [0] * 4, [0] * 4])


def test_lengths_of_slices_need_their_frames() -> None:
    layers = {**FRAMES, "one": {"class": "reduce", "mode": "max", "axis": "T", "from": "s"}}
    layers["output"] = {"class": "reduce", "mode": "max", "axis": SLICE, "from": "one"}
    with pytest.raises(ConfigError, match="the lengths of the axis slice vary with the frames of the axis time"):
        run(layers)


@pytest.mark.sampled
@pytest.mark.parametrize("size", ["l2", TIME, 2, None])
@pytest.mark.parametrize("start", [None, 0, 1, "one"])
def test_slice_nd_by_start_and_size(start: Any, size: Any) -> None:
    layers = {
        "l2": {"class": "eval", "eval": "source(0) - 2", "from": "l"},
        "one": {"class": "eval", "eval": "source(0) * 0 + 1", "from": "l"},
        "l": FRAMES["l"],
        "output": {"class": "slice_nd", "start": start, "size": size, "from": "data"},
    }
    if start is None:
        del layers["output"]["start"]
    found, feed = run(layers)
    first = 1 if start in (1, "one") else 0
    for b, n in enumerate(LENS):
        length = {"l2": n - 2, TIME: n, 2: 2, None: n - first}[size]
        got = found["output"].value[b]
        inside = min(length, n - first if start == "one" else 5 - first)
        np.testing.assert_allclose(got[:inside], feed["data"][b, first : first + inside])
        if size != 2:  # a size that is a number makes an axis without lengths
            assert found["output"].sizes[1][b] == length
        if start == "one":
            assert not got[inside:].any()


def test_axes_that_are_no_axes_of_the_source() -> None:
    layers = {
        "expr": {"class": "length", "axis": TIME + 2, "from": "data"},
        "no_source": {"class": "length", "axis": TIME.ceildiv_right(2)},
        "static": {"class": "length", "axis": FEAT, "from": "data:label"},
        "labels": {"class": "length", "axis": "sparse_dim", "from": "data:label"},
        "batch": {"class": "length", "axis": "B", "from": "data"},
        "batch_range": {"class": "range_from_length", "from": "batch"},
        "range": {"class": "range_in_axis", "axis": 2 * TIME},
        "label_range": {"class": "range_in_axis", "axis": "sparse_dim", "from": "data:label"},
        "time_range": {"class": "range_from_length", "from": "no_source"},
    }
    found, _ = run(
        {**{k: {**v, "is_output_layer": True} for k, v in layers.items()}, "output": {"class": "copy", "from": "data"}}
    )
    values = {name: found[name].value.tolist() for name in layers}
    assert values["expr"] == [7, 5] and values["no_source"] == [3, 2]
    assert (values["static"], values["labels"], values["batch"]) == (4, 7, 2)
    assert values["batch_range"] == [0, 1] and found["batch_range"].axes == ("B",)
    assert values["range"] == list(range(10)) and found["range"].sizes[0].tolist() == [10, 6]
    assert values["label_range"] == list(range(7)) and values["time_range"] == [0, 1, 2]
    assert found["time_range"].sizes[0].tolist() == [3, 2]


@pytest.mark.parametrize(
    "layer, message",
    [
        ({"class": "length", "axis": SpatialDim("x"), "from": "data"}, "the lengths of the dim x are not known"),
        ({"class": "length", "axis": SpatialDim("x") + TIME}, "the lengths of the dim x are not known"),
        ({"class": "length", "axis": "sparse_dim", "from": "data"}, "needs a source with labels"),
        ({"class": "length", "axis": "T"}, "needs exactly one source|the option 'from'|'from'"),
        ({"class": "split_dims", "axis": "T", "dims": (batch_dim, 2), "from": "data"}, "is split into batch_dim"),
        ({"class": "split_dims", "axis": "B", "dims": (2, -1), "from": "data"}, "is split into batch_dim"),
        ({"class": "split_dims", "axis": "T", "dims": (HALF, SpatialDim("q")), "from": "data"}, "only one of them"),
        ({"class": "slice_nd", "size": -1, "from": "data"}, "size must not be negative"),
        ({"class": "slice_nd", "start": "data", "from": "data"}, "start must hold integers"),
        ({"class": "slice_nd", "size": SpatialDim("x"), "from": "data"}, "the lengths of the dim x are not known"),
        ({"class": "slice_nd", "size": 2, "axis": "B", "from": "data"}, "batch axis can't be sliced"),
        ({"class": "unflatten_nd", "sizes": "data:sizes", "num_axes": 2, "in_dim": "B", "from": "data"}, "in_dim must"),
        ({"class": "dot", "reduce": "F", "var1": "except_batch", "from": ["data", "data"]}, "summed over and in var1"),
        ({"class": "dot", "reduce": "F", "var1": "T", "var2": "B", "from": ["data", "data"]}, "batch of source 1"),
        ({"class": "squeeze", "axis": "F", "from": "data"}, "only axes of size 1"),
        ({"class": "squeeze", "axis": "B", "from": "data"}, "only axes of size 1"),
        ({"class": "reinterpret_data", "set_dim_tags": {"B": TIME}, "from": "data"}, "can't become time"),
        ({"class": "linear", "n_out": 2, "activation": None, "from": "data", "out_dim": batch_dim}, "dim batch does"),
    ],
)  # fmt: skip
def test_mistakes(layer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="Layer 'output'.*(%s)" % message):
        run({"output": layer})


HEAD, ROUND, CHUNK, STEPS = SpatialDim("head", 1), SpatialDim("round", 2), SpatialDim("chunk"), SpatialDim("steps", 6)
WIDE = FeatureDim("wide", 4)


@pytest.mark.parametrize(
    "ins, outs, axes, feature",
    [
        ([TIME, FEAT], [FEAT, TIME], "BFT", FEAT),  # the mark follows the dim
        ([FEAT, TIME], [TIME, FEAT], "BTF", FEAT),
        ([TIME, FEAT], [SpatialDim("a", 2), TIME, F2], "BSTF", F2),
        ([FEAT], [F2, TWO], "BTFS", F2),
        ([FEAT], [SpatialDim("a", 4)], "BTF", None),
        ([FEAT], [TWO, SpatialDim("b", 2)], "BTSF", None),
    ],
)
def test_marks_of_reshape(ins: Any, outs: Any, axes: str, feature: Any) -> None:
    data = planned({"output": {"class": "reshape", "in_dims": ins, "out_dims": outs, "from": "data"}})
    assert "".join(data.axis_kinds) == axes
    assert feature in (None, data.feature_dim) and (data.time_dim is TIME)


@pytest.mark.parametrize(
    "source, position, axes",
    [
        ([batch_dim, HEAD, TIME], [batch_dim, HEAD, ROUND, CHUNK], "BSFT"),  # head is the feature axis by default only
        ([batch_dim, TIME, FEAT], [batch_dim, ROUND], "BSF"),
        ([batch_dim, TIME, FEAT], [batch_dim, CHUNK], "BTF"),
        ([batch_dim, HEAD, TIME], [batch_dim], "BF"),
        ([batch_dim, HEAD, TIME], [batch_dim, CHUNK], "BFT"),
    ],
)
def test_feature_axis_of_gather_from_data(source: Any, position: Any, axes: str) -> None:
    extern = {"data": {"dim_tags": source}, "position": {"dim_tags": position, "dtype": "int32"}}
    layer = {"class": "gather", "axis": TIME, "position": "data:position", "from": "data"}
    assert "".join(planned({"output": layer}, extern).axis_kinds) == axes


@pytest.mark.parametrize(
    "tags, axes",
    [([batch_dim, TIME, CHUNK], "BTF"), ([batch_dim, TIME, ROUND, CHUNK], "BTFT"), ([batch_dim, TIME], "BT")],
)
def test_default_feature_axis(tags: Any, axes: str) -> None:
    """The last of feature kind, else the last static one other than batch and time, else the last other one."""
    data = planned({"output": {"class": "copy", "from": "data"}}, {"data": {"dim_tags": tags}})
    assert "".join(data.axis_kinds) == axes


def test_feature_axis_of_frames_in_two_dims() -> None:
    found, feed = run({"output": {"class": "unflatten_nd", "sizes": "data:sizes", "num_axes": 2, "from": "data:plain"}})
    assert found["output"].axes == ("B", "T", "F")
    np.testing.assert_allclose(found["output"].value[0, :, :2], feed["plain"][0, :4].reshape(2, 2), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_frames_in_axes_of_another_layer(axis: int) -> None:
    layer = {"class": "unflatten_nd", "sizes": "data:sizes", "num_axes": 2, "from": "data:plain"}
    data = planned({"output": {**layer, "declare_same_sizes_as": {axis: "data"}}})
    assert data.dims[1 + axis] is TIME and data.dims[2 - axis] is not TIME
    no_frames = {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}
    with pytest.raises(ConfigError, match="declare_same_sizes_as: layer 'mean' has no time axis"):
        planned({"mean": no_frames, "output": {**layer, "declare_same_sizes_as": {axis: "mean"}}})
    with pytest.raises(ConfigError, match="declare_same_sizes_as must be a dict"):
        planned({"output": {**layer, "declare_same_sizes_as": "data"}})
    with pytest.raises(ConfigError, match="out_dims has 1 dims for 2 axes"):
        planned({"output": {**layer, "out_dims": [SpatialDim("a")]}})


@pytest.mark.parametrize("part", [FEAT, SpatialDim("part", 4)])
def test_batch_and_features_merged_and_split(part: Any) -> None:
    """The merged axis is in the place of the feature axis, so the axes are [time, batch, features] then."""
    layers = {
        "merged": {"class": "merge_dims", "axes": [batch_dim, FEAT], "from": "data"},
        "output": {"class": "split_dims", "axis": batch_dim, "dims": (batch_dim, part), "from": "merged"},
    }
    data = planned(layers)
    assert data.axis_kinds == ("T", "B", "F") and data.time_dim is TIME
    found, feed = run(layers)
    np.testing.assert_array_equal(found["output"].value, feed["data"])


RANGE = {
    "batch": {"class": "length", "axis": "B", "from": "data"},
    "lens": {"class": "length", "axis": "T", "from": "data"},
    "longest": {"class": "reduce", "mode": "max", "axes": ["B"], "from": "lens"},
    "number": {"class": "combine", "kind": "mul", "from": ["batch", "longest"]},
    "range": {"class": "range_from_length", "from": "number"},
    "twice": {"class": "concat", "from": [("range", "T"), ("range", "T")]},
}


@pytest.mark.parametrize(
    "dims, axes, shape",
    [
        ((batch_dim, TIME * 2), "BT", (2, 10)),
        ((batch_dim, TIME, 2), "BTF", (2, 5, 2)),
        ((batch_dim, -1), "BT", (2, 10)),
        ((2, -1, batch_dim), "BFT", (2, 2, 5)),
    ],
)
def test_frames_of_all_sequences_split_into_batch_and_others(dims: Any, axes: str, shape: Any) -> None:
    layers = {**RANGE, "output": {"class": "split_dims", "axis": "T", "dims": dims, "from": "twice"}}
    found, _ = run(layers)
    output = found["output"]
    assert "".join(output.axes) == axes and output.value.shape == shape
    values = np.tile(np.arange(10), 2)
    expected = values.reshape(2, 5, 2).transpose(2, 0, 1) if dims[0] == 2 else values.reshape(shape)
    np.testing.assert_array_equal(output.value, expected)
    if dims == (batch_dim, TIME * 2):
        np.testing.assert_array_equal(output.sizes[1], [10, 6])


def test_a_table_of_two_ranges() -> None:
    """Sources without a batch axis are combined to a table, which positions in each frame can be."""
    layers = {
        "t": {"class": "range_in_axis", "axis": "T", "from": "data"},
        "steps": {"class": "range", "limit": 6, "out_spatial_dim": STEPS},
        "both": {"class": "combine", "kind": "add", "from": ["t", "steps"], "is_output_layer": True},
        "table": {"class": "variable", "shape": (STEPS, WIDE), "init": "glorot_uniform", "is_output_layer": True},
        "output": {
            "class": "scatter_nd", "from": "table", "position": "both", "position_axis": STEPS,
            "output_dim_via_time_from": "data", "filter_invalid_indices": True},
    }  # fmt: skip
    found, _ = run(layers)
    assert found["both"].axes == ("T", "F") and found["output"].axes == ("T", "T", "F")
    np.testing.assert_array_equal(found["both"].value, np.add.outer(np.arange(5), np.arange(6)))
    expected = np.zeros((5, 5, 4), "float32")
    for t in range(5):
        expected[t, t:] = found["table"].value[: 5 - t]
    np.testing.assert_allclose(found["output"].value, expected)


def test_numbers_of_features_must_agree_also_without_a_batch() -> None:
    layers = {name: {"class": "variable", "shape": [FeatureDim(name, size)]} for name, size in (("a", 3), ("b", 4))}
    with pytest.raises(ConfigError, match="the sources have different numbers of features, 3, 4"):
        planned({**layers, "output": {"class": "combine", "kind": "add", "from": ["a", "b"]}})
