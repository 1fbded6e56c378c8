"""`product`: its forms compute the same, and the size of their graphs."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.product import Matrix, product
from returnn_tf.util.lazy_tf import tf


def traced(shape: list[Optional[int]], axis: int, *, train: bool, transposed: bool, portable: bool) -> Any:
    """Return the graph of a product and its gradients, as a function of x, the matrix and the gradient of y."""
    width = shape[axis]
    assert width is not None
    matrix = [5, width] if transposed else [width, 5]

    def emit(x: Any, w: Any) -> Any:
        y = product(x, Matrix(w, transposed), axis, train=train, product_dtype=None)
        dx, dw = tf.gradients(y, [x, w], tf.cos(y))
        return y, dx, dw

    signature = [tf.TensorSpec(shape, "float32"), tf.TensorSpec(matrix, "float32")]
    if not portable:
        return tf.function(emit, input_signature=signature, autograph=False).get_concrete_function()
    with portable_ops():
        return tf.function(emit, input_signature=signature, autograph=False).get_concrete_function()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape, axis, sizes",
    [
        ([None, None, 3], -1, [2, 4, 3]),
        ([None, None, 3], 2, [2, 0, 3]),
        ([None, 7, None, 3], 3, [2, 7, 4, 3]),
        ([2, 4, 3], -1, [2, 4, 3]),
        ([1, None, 3], -1, [1, 4, 3]),
        ([0, None, 3], -1, [0, 4, 3]),
        ([3], 0, [3]),
        ([None, 3, None], 1, [2, 3, 4]),
    ],
)
def test_products_in_training_are_those_of_exports(
    shape: list[Optional[int]], axis: int, sizes: list[int], transposed: bool
) -> None:
    rng = np.random.RandomState(1)
    x = rng.normal(size=sizes).astype("float32")
    w = rng.normal(size=[5, 3] if transposed else [3, 5]).astype("float32")
    own, plain = (
        traced(shape, axis, train=train, transposed=transposed, portable=not train) for train in (True, False)
    )
    assert own.structured_outputs[0].shape == plain.structured_outputs[0].shape
    for a, b in zip(own(tf.constant(x), tf.constant(w)), plain(tf.constant(x), tf.constant(w))):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape, saved", [([None, None, 3], 11), ([1, None, 3], 18)])
def test_the_graph_of_a_product_is_small(shape: list[Optional[int]], saved: int) -> None:
    own, plain = (traced(shape, -1, train=True, transposed=False, portable=portable) for portable in (False, True))
    assert len(own.graph.get_operations()) + saved <= len(plain.graph.get_operations())
