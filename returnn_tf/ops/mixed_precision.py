"""Operands and results of products under the setting mixed_precision; without it, they stay as they are."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.native import product
from returnn_tf.native.dispatch import form
from returnn_tf.util.lazy_tf import tf


def reduced(x: Any, dtype: Optional[str]) -> Any:
    """Return a float32 tensor in the type of products; None stays None.

    :param dtype: `Semantics.product_dtype`
    """
    return x if x is None or dtype is None or x.dtype != tf.float32 else tf.cast(x, dtype)


def full(x: Any, dtype: Optional[str]) -> Any:
    """Return the result of a product in float32.

    :param dtype: `Semantics.product_dtype`
    """
    return x if dtype is None or x.dtype.name != dtype else tf.cast(x, tf.float32)


def _ops_that_round(a: Any, b: Any, bias: Any = None, *, product_dtype: Optional[str], **order: bool) -> Optional[Any]:
    return product_dtype and product.large_ops(a, b, **order, product_dtype=product_dtype)


@form(
    lambda ops, a, b, bias=None, *, product_dtype, **order: product.native_matmul(
        ops, a, b, bias, **order, rounded=True
    ),
    where=_ops_that_round,
)
def matmul(
    a: Any,
    b: Any,
    bias: Optional[Any] = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    product_dtype: Optional[str],
) -> Any:
    """Compute `returnn_tf.native.product.matmul` with operands of the type of products.

    :param product_dtype: `Semantics.product_dtype`
    :return: of that type, or float32 if the native op computes it
    """
    a, b, bias = reduced(a, product_dtype), reduced(b, product_dtype), reduced(bias, product_dtype)
    return product.matmul(a, b, bias, transpose_a=transpose_a, transpose_b=transpose_b)
