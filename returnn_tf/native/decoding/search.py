"""Native parts of a step of a beam search: self-attention over histories in place, products."""

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


def native_beam_attention(
    ops: Any,
    qkv: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    rows: tf.Tensor,
    *,
    heads: int,
    shift: Optional[tf.Tensor] = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Attend to the frame of this step and those before it, in float32, without a gradient.

    :param ops: what `search_ops` returned
    :param qkv: [entries, heads * (2 * key + value)]: for each head query, key and value of this step
    :param keys: [capacity, entries, heads * key]: frames of the steps before, and room for others
    :param values: [capacity, entries, heads * value]
    :param rows: int32 [entries, steps]: the entry that wrote the frame of each step before
    :param shift: [steps + 1 or more, key], added to the keys of all heads
    :return: the result [entries, heads * value]; keys, values and rows with the frame of this step
    """
    found: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor] = ops.rtf_beam_attention(
        qkv=qkv, keys=keys, values=values, rows=rows, shift=[] if shift is None else [shift], heads=heads
    )
    return found


def native_once_attention(
    ops: Any, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, lengths: Optional[tf.Tensor], *, scale: float
) -> tf.Tensor:
    """Attend to frames that all hypotheses of a sequence share, in float32, without a gradient.

    :param ops: what `search_ops` returned
    :param queries: [batch * beam, heads, size]
    :param keys: [batch, frames, heads, size]
    :param values: [batch, frames, heads, value]
    :param lengths: int32 [batch * beam]: number of frames that count; None: all. Where it is 0, so is the result.
    :param scale: factor of the energies
    :return: [batch * beam, heads, value]
    """
    y: tf.Tensor = ops.rtf_once_attention(
        queries=queries,
        keys=keys,
        values=values,
        lengths=tf.zeros([0], tf.int32) if lengths is None else lengths,
        has_lengths=lengths is not None,
        scale=scale,
    )
    return y


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
    kernels=(
        "search/attention_cpu.cc",
        "search/once_cpu.cc",
        "search/packed_cpu.cc",
    ),
    bindings=(
        "search/attention_op.cc",
        "search/once_op.cc",
        "search/packed_op.cc",
    ),
)
def self_test(ops: Any) -> None:
    """Compare with histories that are reordered in numpy.

    :raises NativeOpError: they differ
    """
    _test_attention(ops)
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
            raise NativeOpError("the attention to frames of a sequence that was compiled gives wrong results")
    lengths, values = np.array([5, 3, 1, 0, 2, 5]), rng.normal(0, 1, (3, 5, 2, 7)).astype("float32")
    energies = 0.5 * np.einsum("bhd,bshd->bhs", queries, copies)
    soft = np.exp(energies) * (np.arange(5) < lengths[:, None, None])
    soft /= np.maximum(soft.sum(axis=-1, keepdims=True), 1e-30)
    found = native_once_attention(ops, queries, frames, values, tf.constant(lengths, tf.int32), scale=0.5)
    if not np.allclose(found, np.einsum("bhs,bshd->bhd", soft, values.repeat(2, axis=0)), atol=1e-5):
        raise NativeOpError("the attention to frames of a sequence that was compiled gives wrong results")


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


def _test_attention(ops: Any) -> None:
    rng = np.random.RandomState(1)
    entries, heads, key, value = 29, 3, 18, 7
    state: Any = (
        tf.zeros([0, entries, heads * key]), tf.zeros([0, entries, heads * value]), tf.zeros([entries, 0], tf.int32)
    )  # fmt: skip
    history = np.zeros((entries, 0, heads, key + value))
    for step in range(20):  # more than the first allocation has room for
        shift = rng.normal(0, 1, (step + 1, key)).astype("float32") if step % 2 else np.zeros((step + 1, key))
        qkv = rng.normal(0, 1, (entries, heads, 2 * key + value)).astype("float32")
        given = tf.constant(shift, tf.float32) if step % 2 else None
        y, *state = native_beam_attention(
            ops, tf.constant(qkv.reshape([entries, -1])), *state, heads=heads, shift=given
        )
        history = np.concatenate([history, qkv[:, None, :, key:]], axis=1)
        keys = history[..., :key] + shift[:, None]
        energies = np.einsum("ehd,eshd->esh", qkv[..., :key], keys) / key**0.5
        weights = np.exp(energies - energies.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = np.einsum("esh,eshd->ehd", weights, history[..., key:])
        if not np.allclose(y, expected.reshape([entries, -1]), rtol=1e-5, atol=1e-5):
            raise NativeOpError("the beam attention that was compiled gives wrong results")
        order = rng.randint(0, entries, entries)
        history, state[2] = history[order], tf.gather(state[2], order)
