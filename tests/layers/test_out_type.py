"""The option out_type of `eval`: what it says against what the code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, run, template

X = feed()["data"]
#: What front ends that write the type of a template as a dict add to it.
OF_A_TEMPLATE = {"batch": None, "beam": None, "control_flow_ctx": None, "available_for_inference": True}


@pytest.mark.parametrize(
    "code, out_type, axes, value",
    [
        ("2 * source(0)", {"batch_dim_axis": 1, "time_dim_axis": 0}, "BTF", 2 * X),  # in the order of the output
        (
            "tf.transpose(source(0, auto_convert=False), [1, 0, 2])",
            {"batch_dim_axis": 1, "time_dim_axis": 0},
            "BTF",
            X,
        ),
        ("source(0)[..., :2]", {"dim": 2}, "BTF", X[..., :2]),
        ("source(0)[..., :2]", {"dim": 2, **OF_A_TEMPLATE}, "BTF", X[..., :2]),
        ("tf.reduce_sum(source(0), -1)", {"shape": (None,), "dim": None}, "BT", X.sum(-1)),
        ("tf.one_hot(source(0), 5)", {"shape": (None, 5), "dim": 5, "sparse": False, "dtype": "float32"}, "BTF", None),
        (
            "tf.argmax(source(0), -1)",
            {"shape": (None,), "dim": 3, "sparse": True, "dtype": "int64"},
            "BT",
            X.argmax(-1),
        ),
    ],
)
def test_out_type(code: str, out_type: dict[str, Any], axes: str, value: Any) -> None:
    source = "data:labels" if value is None else "data"
    result = run({"output": {"class": "eval", "eval": code, "from": source, "out_type": out_type}})["output"]
    if value is None:
        value = np.eye(5)[feed()["labels"]]
    assert "".join(result.axes) == axes
    np.testing.assert_array_equal(result.sizes[1], LENS)
    for got, expected, length in zip(result.value, value, LENS):
        np.testing.assert_allclose(got[:length], expected[:length], rtol=1e-5, atol=1e-6)


#: out_type, the axes and shape of the result
WHOLE: list[tuple[dict[str, Any], str, tuple[int, ...]]] = [
    ({"shape": (), "batch_dim_axis": None}, "", ()),
    ({"shape": ()}, "B", (3,)),
    ({"shape": (3,), "batch_dim_axis": None, "dtype": "int32"}, "F", (3,)),
    ({"shape": (2,)}, "BF", (3, 2)),
    ({"shape": (2,), "dim": 7, "sparse": True}, "BS", (3, 2)),
    ({"shape": (2, 3), "batch_dim_axis": None, "feature_dim_axis": 0}, "FS", (2, 3)),
    ({"dims": []}, "", ()),
    ({"dims": [FEATURE]}, "S", (3,)),  # dims mark no axis by default
    ({"dims": [FEATURE], "version": 1}, "F", (3,)),
    ({"dim_tags": [STATIC, FEATURE]}, "SF", (2, 3)),
    ({"dims": [batch_dim, FEATURE], "feature_dim_axis": 1, **OF_A_TEMPLATE}, "BF", (3, 3)),
    ({"dim_tags": [batch_dim, FEATURE], "version": 2}, "BS", (3, 3)),
    ({"dims": [batch_dim, TIME], "dtype": "bool"}, "BT", (3, 4)),
]


@pytest.mark.parametrize(
    "out_type, marks",
    [
        ({"dims": [batch_dim, TIME, FEATURE]}, (1, 2)),
        ({"dims": [batch_dim, TIME, FEATURE], "version": 1}, (1, 2)),
        ({"dims": [batch_dim, TIME, FEATURE], "version": 2}, (None, None)),
        ({"dims": [batch_dim, TIME, FEATURE], "version": 2, "time_dim_axis": 1}, (1, None)),
        ({"dim_tags": [batch_dim, TIME, FEATURE], "feature_dim_axis": None}, (1, None)),
        ({"shape": (None, 3), "version": 2}, (None, None)),
        ({"shape": (None, 3), "version": 2, "feature_dim_axis": 2}, (None, 2)),
    ],
)
def test_marks_by_version(out_type: dict[str, Any], marks: Any) -> None:
    """Dims that replace those of the sources are marked as these are, unless version 2 asks for no marks."""
    data = template({"output": {"class": "eval", "from": "data", "eval": "source(0)", "out_type": out_type}})
    assert (data.time_axis, data.feature_axis) == marks


@pytest.mark.sampled(2)
@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("form", ["text", "function", "type by function", "combine"])
@pytest.mark.parametrize("out_type, axes, shape", WHOLE)
def test_code_without_sources(out_type: dict[str, Any], axes: str, shape: Any, form: str, in_loop: bool) -> None:
    dtype = out_type.get("dtype", "int32" if out_type.get("sparse") else "float32")
    code: Any = "tf.ones(%r, dtype=%r)" % (shape, dtype)
    if form == "function":
        code = lambda source, self, **kwargs: np.ones(shape, dtype)  # noqa: E731
    given: Any = (lambda **kwargs: out_type) if form == "type by function" else out_type
    layer = {"class": "eval", "from": [], "eval": code, "out_type": given}
    layer.update({"class": "combine", "kind": "eval"} if form == "combine" else {})
    if in_loop:
        as_float = {"class": "cast", "dtype": "float32", "from": "x"}
        once = {
            "class": "eval", "from": "f", "eval": "tf.reduce_mean(source(0))",
            "out_type": {"shape": (), "batch_dim_axis": None},
        }  # fmt: skip
        unit = {"x": layer, "f": as_float, "once": once}
        unit["output"] = {"class": "combine", "kind": "add", "from": ["data:source", "once"]}
        network: dict[str, Any] = {"output": {"class": "rec", "from": "data", "unit": unit}}
        result = run(network)["output"].value
        for got, x, length in zip(result, X, LENS):
            np.testing.assert_allclose(got[:length], x[:length] + 1, rtol=1e-5)
        return
    result = run({"output": layer})["output"]
    assert "".join(result.axes) == axes and result.value.dtype == dtype
    np.testing.assert_array_equal(result.value, np.ones(shape, dtype))


@pytest.mark.parametrize(
    "options, match",
    [
        ({}, "or describe the whole output by out_type"),
        ({"out_type": {"dtype": "int32"}}, "or describe the whole output by out_type"),
        ({"out_type": {"dim": 3}}, "or describe the whole output by out_type"),
        ({"out_type": {"shape": (None, 2)}}, "the lengths of the axis None are unknown. Give 'dims'"),
        ({"out_type": {"dims": [SpatialDim("unknown")]}}, "unknown"),
        ({"out_type": {"shape": (3,), "dim": 2}}, "out_type: dim is 2, but the shape"),
        ({"out_type": {"shape": ()}, "eval": "source(0)"}, "has source.0., but there are 0 sources"),
        ({"class": "combine", "kind": "add", "out_type": {"shape": ()}}, "needs sources: add 'from'"),
    ],
)
def test_code_without_sources_that_cannot_be_planned(options: dict[str, Any], match: str) -> None:
    fails({"class": "eval", "from": [], "eval": "tf.zeros(())", **options}, match)
