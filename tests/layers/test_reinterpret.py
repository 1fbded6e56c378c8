"""`reinterpret_data`: what changes about the template, and that the values stay."""

import numpy as np
import pytest

from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, output, run, template


def reint(source="data", **options):
    return {"class": "reinterpret_data", "from": source, **options}


def data_of(source="data", **options):
    return template({"output": reint(source, **options)})


@pytest.mark.parametrize(
    "source,options,axes",
    [
        ("data", {"set_axes": {"F": None}}, "B,T,S"),
        ("data:wide", {"set_axes": {"F": STATIC}}, "B,T,F,S"),
        ("data:wide", {"set_axes": {"f": "dim:2"}}, "B,T,F,S"),
        ("data", {"set_axes": {"F": "T"}}, "B,F,S"),
        ("data", {"set_axes": {"T": "F", "F": "T"}}, "B,F,S"),
        ("data", {"switch_axes": "tf"}, "B,F,S"),
        ("data", {"enforce_batch_major": True}, "B,T,F"),
        ("data", {"enforce_time_major": True}, "B,T,F"),
        ("data:labels", {"set_sparse": False}, "B,T"),
    ],
)
def test_axes(source, options, axes):
    result = output(reint(source, **options))
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, feed()[source.rpartition(":")[2]])


def test_major_axes():
    assert data_of(enforce_time_major=True).dims == (TIME, data_of().dims[0], FEATURE)
    net = {"a": reint(enforce_time_major=True), "output": reint("a", enforce_batch_major=True)}
    assert template(net).dims == data_of().dims
    np.testing.assert_array_equal(run(net)["output"].value, feed()["data"])


def test_time_axis():
    data = data_of("data:wide", set_axes={"T": STATIC})
    assert data.time_axis == 2 and data.axis_kinds == ("B", "T", "S", "F")
    assert data_of(set_axes={"T": None}).time_axis is None
    assert data_of(set_axes={"time": "F"}).time_axis == 2


def test_switch_with_batch():
    data = data_of(switch_axes="bt")
    assert data.batch_axis == 1 and data.time_axis == 0 and data.dims[0] is TIME


def test_size_base():
    data = data_of("data:other", size_base="data")
    assert data.time_dim is TIME
    net = {
        "r": reint("data:other", size_base="data"),
        "output": {"class": "combine", "kind": "add", "from": ["r", "data"]},
    }
    np.testing.assert_allclose(run(net)["output"].value, feed()["data"] + feed()["other"])
    assert data_of("data:numbers", size_base="data:numbers").rank == 1


def test_batch_dim_base():
    net = {"f": {"class": "flatten_batch", "from": "data"}, "g": {"class": "flatten_batch", "from": "data:wide"},
           "output": reint("f", batch_dim_base="g")}  # fmt: skip
    assert run(net)["output"].value.shape == (LENS.sum(), 3)


def test_new_dims():
    n, m = SpatialDim("n"), FeatureDim("m", 3)
    net = {
        "output": {"class": "copy", "from": "r"},
        "r": reint(set_dim_tags={TIME: n, FEATURE: m}),
        "len": {"class": "length", "axis": n, "from": "r", "is_output_layer": True},
    }
    data = template(net)
    assert data.dims[1:] == (n, m) and data.time_dim is n
    result = run(net)
    np.testing.assert_array_equal(result["len"].value, LENS)
    np.testing.assert_array_equal(result["output"].sizes[1], LENS)


def test_new_dim_of_unknown_size_gets_it():
    a = SpatialDim("a")
    net = {"r": reint("data:wide", set_dim_tags={STATIC: a}), "output": {"class": "length", "axis": a, "from": "r"}}
    assert run(net)["output"].value == 2


@pytest.mark.parametrize(
    "source,options,size",
    [
        ("data:labels", {"set_sparse_dim": 7}, 7),
        ("data:labels", {"set_sparse_dim": FeatureDim("x", 9)}, 9),
        ("data:labels", {"increase_sparse_dim": 1}, 6),
        ("data:labels", {"set_sparse": True}, 5),
        ("data:ints", {"set_sparse": True, "set_sparse_dim": 3}, 3),
        ("data:ints", {"set_sparse_dim": 3}, 3),
        ("data:labels", {"set_sparse_dim": None}, None),
        ("data:labels", {"set_sparse": False, "set_sparse_dim": 3}, None),
    ],
)
def test_labels(source, options, size):
    data = data_of(source, **options)
    assert (data.sparse_dim.size if data.sparse else None) == size
    assert data.feature_axis is None and data.dtype == "int32"


@pytest.mark.parametrize(
    "source,options,message",
    [
        ("data", {"set_sparse": True}, "give set_sparse_dim, the number of labels"),
        ("data", {"set_sparse_dim": 3}, "label indices must be integers"),
        ("data", {"size_base": "data:numbers"}, "both need a time axis"),
        ("data", {"set_axes": {"X": "T"}}, "the keys are 'B', 'T' and 'F', got 'X'"),
        ("data", {"set_dim_tags": {FEATURE: FeatureDim("x", 4)}}, "can't become x=4"),
        ("data", {"switch_axes": "btf"}, "must mean two axes"),
    ],
)
def test_errors(source, options, message):
    fails(reint(source, **options), message)
