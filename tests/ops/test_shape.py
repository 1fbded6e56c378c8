"""The order of axes: a transpose of a transpose is one, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


@pytest.mark.parametrize(
    ("orders", "count"),
    [
        (([1, 0, 2],), 1),
        (([0, 2, 1], [2, 0, 1]), 1),
        (([1, 2, 0], [2, 0, 1]), 0),
        (([1, 0, 2], [0, 2, 1], [1, 2, 0]), 1),
        (([0, 1, 2],), 0),
    ],
)
def test_joins_transposes(orders: tuple[list[int], ...], count: int) -> None:
    """Values are the same, by as few ops as that needs."""
    x, used = np.arange(24.0).reshape(2, 3, 4), []

    @tf.function(autograph=False)
    def run(y: Any) -> Any:
        for order in orders:
            y = transpose(y, order)
        op = y.op
        while op.type == "Transpose":
            used.append(op)
            op = op.inputs[0].op
        return tf.identity(y)

    expected = x
    for order in orders:
        expected = expected.transpose(order)
    np.testing.assert_array_equal(run(tf.constant(x)), expected)
    assert len(used) == count


def test_order_that_is_no_constant() -> None:
    """It is not known before the graph runs."""

    @tf.function(autograph=False)
    def run(x: Any, order: Any) -> Any:
        return transpose(tf.transpose(x, order), [1, 0])

    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(run(tf.constant(x), tf.constant([1, 0])), x)


def test_transpose_outside_of_a_loop() -> None:
    """What was transposed before a loop is not transposed back in each step."""

    @tf.function(autograph=False)
    def run(x: Any) -> Any:
        before = tf.transpose(x, [1, 0])

        def body(i: Any, y: Any) -> Any:
            back = transpose(before, [1, 0])
            assert back.op.type != "Transpose"
            return i + 1, y + back

        return tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]

    np.testing.assert_array_equal(run(tf.ones([2, 3])), np.full([2, 3], 3.0))
