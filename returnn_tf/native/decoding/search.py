"""Native parts of a step of a beam search: self-attention over keys and values that stay in place, the best labels."""

from __future__ import annotations

from typing import Any, Optional

import numpy

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf


def search_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("search", self_test)


def native_beam_attention(
    ops: Any, qkv: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, rows: tf.Tensor, *, heads: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Attend to the frame of this step and those before it, in float32, without a gradient.

    :param ops: what `search_ops` returned
    :param qkv: [entries, heads * (2 * key + value)]: for each head query, key and value of this step
    :param keys: [capacity, entries, heads * key]: frames of the steps before, and room for others
    :param values: [capacity, entries, heads * value]
    :param rows: int32 [entries, steps]: the entry that wrote the frame of each step before
    :return: the result [entries, heads * value]; keys, values and rows with the frame of this step
    """
    found: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor] = ops.rtf_beam_attention(
        qkv=qkv, keys=keys, values=values, rows=rows, heads=heads
    )
    return found


def native_best_labels(ops: Any, x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Find the highest entries of each row, and what normalises a softmax; in float32, without a gradient.

    :param ops: what `search_ops` returned
    :param x: [rows, labels]
    :param count: at most the number of labels
    :return: the highest entries, highest first, and their indices, int32, each [rows, count]; equal ones in their
        order; the log of the sum of ``exp(x - highest)``, [rows]
    """
    found: tuple[tf.Tensor, tf.Tensor, tf.Tensor] = ops.rtf_best_labels(x=x, count=count)
    return found


@register_op(
    "search",
    kernels=("search/attention_cpu.cc", "search/best_labels_cpu.cc", "search/once_cpu.cc"),
    bindings=("search/attention_op.cc", "search/best_labels_op.cc", "search/once_op.cc"),
)
def self_test(ops: Any) -> None:
    """Compare with histories that are reordered in numpy, and with sorted rows.

    :raises NativeOpError: they differ
    """
    _test_attention(ops)
    _test_once(ops)
    for labels, count in ((5, 5), (64, 1), (1000, 12)):
        x = numpy.random.RandomState(labels).randint(-40, 40, (3, labels)).astype("float32") / 4
        values, indices, log_sums = native_best_labels(ops, tf.constant(x), count)
        order = numpy.argsort(-x, axis=1, kind="stable")[:, :count]
        expected = numpy.take_along_axis(x, order, axis=1)
        sums = numpy.log(numpy.exp(x - expected[:, :1]).sum(axis=1))
        if (
            (indices.numpy() != order).any()
            or (values.numpy() != expected).any()
            or not numpy.allclose(log_sums, sums, atol=1e-5)
        ):
            raise NativeOpError("the best labels that were compiled are wrong")


def _test_once(ops: Any) -> None:
    rng = numpy.random.RandomState(1)
    queries, weights = (rng.normal(0, 1, (6, 2, size)).astype("float32") for size in (19, 5))
    frames = rng.normal(0, 1, (3, 5, 2, 19)).astype("float32")
    copies = frames.repeat(2, axis=0)
    for found, equation, x in (
        (ops.rtf_once_energies(queries=queries, keys=frames), "bhd,bshd->bhs", queries),
        (ops.rtf_once_sums(weights=weights, values=frames), "bhs,bshd->bhd", weights),
    ):
        if not numpy.allclose(found, numpy.einsum(equation, x, copies), atol=1e-5):
            raise NativeOpError("the attention to frames of a sequence that was compiled gives wrong results")


def _test_attention(ops: Any) -> None:
    rng = numpy.random.RandomState(1)
    entries, heads, key, value = 29, 3, 18, 7
    state: Any = (
        tf.zeros([0, entries, heads * key]), tf.zeros([0, entries, heads * value]), tf.zeros([entries, 0], tf.int32)
    )  # fmt: skip
    history = numpy.zeros((entries, 0, heads, key + value))
    for _ in range(20):  # more than the first allocation has room for
        qkv = rng.normal(0, 1, (entries, heads, 2 * key + value)).astype("float32")
        y, *state = native_beam_attention(ops, tf.constant(qkv.reshape([entries, -1])), *state, heads=heads)
        history = numpy.concatenate([history, qkv[:, None, :, key:]], axis=1)
        energies = numpy.einsum("ehd,eshd->esh", qkv[..., :key], history[..., :key]) / key**0.5
        weights = numpy.exp(energies - energies.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = numpy.einsum("esh,eshd->ehd", weights, history[..., key:])
        if not numpy.allclose(y, expected.reshape([entries, -1]), rtol=1e-5, atol=1e-5):
            raise NativeOpError("the beam attention that was compiled gives wrong results")
        order = rng.randint(0, entries, entries)
        history, state[2] = history[order], tf.gather(state[2], order)
