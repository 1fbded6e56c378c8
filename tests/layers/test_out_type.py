"""The option out_type of `eval`: what it says against what the code gives."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.layers.nets import LENS, feed, run

X = feed()["data"]


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
        value = numpy.eye(5)[feed()["labels"]]
    assert "".join(result.axes) == axes
    numpy.testing.assert_array_equal(result.sizes[1], LENS)
    for got, expected, length in zip(result.value, value, LENS):
        numpy.testing.assert_allclose(got[:length], expected[:length], rtol=1e-5, atol=1e-6)
