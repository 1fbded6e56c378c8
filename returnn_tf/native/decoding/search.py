"""Native products in a beam search: with matrices that are packed once, and with frames of a sequence."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.after_product import NOTHING, AfterProduct
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf

#: Smaller matrices stay in the caches.
_LEAST_BYTES = 2**16


def search_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("search", self_test)


@dataclasses.dataclass(frozen=True)
class PackedMatrix:
    """A matrix [depth, columns] in the order in which a product reads it, for products with few rows.

    :param numbers: [size]
    """

    ops: Any
    numbers: tf.Tensor
    columns: int

    @classmethod
    def of(cls, op: Any) -> PackedMatrix:
        """Return that of an op `product` in a graph."""
        return cls(search_ops(), op.inputs[1], op.get_attr("columns"))

    def product(self, x: tf.Tensor, after: AfterProduct = NOTHING) -> tf.Tensor:
        """Return ``x matrix`` and what follows, [rows, columns], in float32, without a gradient.

        :param x: [rows, depth]
        """
        y: tf.Tensor = self.ops.rtf_packed_product(x=x, packed=self.numbers, columns=self.columns, **after.arguments())
        return y


def pack(ops: Any, w: tf.Tensor, *, transposed: bool) -> PackedMatrix:
    """Pack a matrix of float32 whose sizes are known.

    :param ops: what `search_ops` returned
    :param w: [depth, columns], or transposed
    """
    return PackedMatrix(ops, ops.rtf_pack_matrix(w=w, transposed=transposed), int(w.shape[0 if transposed else 1]))


def in_large_pages(numbers: NDArray[Any]) -> Any:
    """Copy the numbers of a rounded matrix to a tensor in large pages, if there is the op for it, and return it."""
    ops = search_ops() if numbers.nbytes >= _LEAST_BYTES else None
    return numbers if ops is None else ops.rtf_place_matrix(x=numbers)


@register_op(
    "search",
    kernels=("search/once_products_cpu.cc", "search/packed_cpu.cc"),
    bindings=("search/once_products_op.cc", "search/packed_op.cc"),
)
def self_test(ops: Any) -> None:
    """Compare with products in numpy.

    :raises NativeOpError: they differ
    """
    _test_once(ops)
    _test_packed(ops)


def _test_once(ops: Any) -> None:
    rng = np.random.RandomState(1)
    queries, weights = (rng.normal(0, 1, (6, 2, size)).astype("float32") for size in (19, 5))
    frames = rng.normal(0, 1, (3, 5, 2, 19)).astype("float32")
    copies = frames.repeat(2, axis=0)
    for found, equation, x in (
        (ops.rtf_once_energies(queries=queries, keys=frames), "bhd,bshd->bhs", queries),
        (ops.rtf_once_sums(weights=weights, values=frames), "bhs,bshd->bhd", weights),
    ):
        if not np.allclose(found, np.einsum(equation, x, copies), atol=1e-5):
            raise NativeOpError("the product with frames of a sequence that was compiled is wrong")


def _test_packed(ops: Any) -> None:
    rng = np.random.RandomState(1)
    shapes = (17, 90), (90, 70), (70,), (17, 70)
    x, w, bias, residual = (rng.normal(0, 1, shape).astype("float32") for shape in shapes)
    after = AfterProduct(tf.constant(bias), tf.constant(residual), relu=True)
    expected = residual + np.maximum(x @ w + bias, 0)
    for transposed in (False, True):
        matrix = pack(ops, tf.constant(w.T if transposed else w), transposed=transposed)
        if not np.allclose(matrix.product(tf.constant(x), after), expected, atol=1e-4):
            raise NativeOpError("the product with a packed matrix that was compiled is wrong")
