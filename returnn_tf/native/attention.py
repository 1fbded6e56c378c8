"""Native attention of all heads, in blocks of queries, with gradients; see ``native_ops/attention/attention.h``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf


def attention_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("attention", self_test)


def native_attention(
    ops: Any,
    parts: Sequence[tf.Tensor],
    key_size: int,
    *,
    scale: float,
    lengths: Optional[tf.Tensor] = None,
    causal: bool = False,
    table: Optional[tf.Tensor] = None,
    dropout: float = 0.0,
    seed: Optional[tf.Tensor] = None,
    rounded: bool = False,
) -> tf.Tensor:
    """Compute ``y[t] = sum over s of softmax over s(scale q[t] . (k[s] + table[distance(t, s)])) v[s]`` by head.

    :param ops: what `attention_ops` returned
    :param parts: queries, keys and values, float32 [batch, time, heads, size]; or one tensor with all three behind each
        other in the last axis
    :param lengths: of the keys, int32 [batch]; None: all
    :param causal: a query sees the keys up to its own position
    :param table: [2 * clipping + 1, key_size], vectors to add to the keys by the clipped distance s - t
    :param dropout: on the weights: those of which ``tf.random.stateless_uniform`` of [batch, heads, queries, keys] is
        less are 0, the others multiplied by ``1 / (1 - dropout)``
    :param seed: int [2], for the dropout
    :param rounded: round the factors of all products to bfloat16, on GPUs and CPUs that multiply such numbers; sums,
        softmax and dropout are float32, on other CPUs the factors, too
    :return: [batch, queries, heads, value]; 0 for queries without keys
    """
    _register_gradient(ops)
    if dropout:
        assert seed is not None
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    else:
        with tf.device("/CPU:0"):  # also on a GPU the kernel reads them there
            key, counter = tf.zeros([1], tf.uint64), tf.zeros([2], tf.uint64)
    return ops.rtf_attention(
        parts=parts, lengths=tf.zeros([0], tf.int32) if lengths is None else lengths,
        table=tf.zeros([0, key_size]) if table is None else table, key=key, counter=counter,
        key_size=key_size, causal=causal, scale=scale, dropout=dropout, rounded=rounded,
    )[0]  # fmt: skip


def _register_gradient(ops: Any) -> None:
    """Register the gradient once; that of the gradient is where the form in TensorFlow is."""
    register_once(RtfAttention=partial(_gradient, ops))


def _gradient(ops: Any, op: Any, dy: Any, dlog_sums: Any) -> list[Any]:
    del dlog_sums  # nothing but the gradient reads them, and its own gradient takes them as functions of the parts
    options = {name: op.get_attr(name) for name in ("key_size", "causal", "scale", "dropout", "rounded")}
    n = op.get_attr("n")
    lengths, table, key, counter = list(op.inputs)[n:]
    y, log_sums = op.outputs
    found = ops.rtf_attention_grad(
        parts=list(op.inputs)[:n], lengths=lengths, table=table, key=key, counter=counter, y=y, log_sums=log_sums,
        dy=dy, **options,
    )  # fmt: skip
    d_table = None if table.shape[0] == 0 else tf.reduce_sum(found.d_tables, axis=[0, 1])
    return [*found.d_parts, None, d_table, None, None]


@register_op(
    "attention",
    kernels=("attention/attention_cpu.cc", "attention/attention_grad_cpu.cc"),
    bindings=("attention/attention_op.cc",),
    cuda=("attention/attention_cuda.cu", "attention/attention_grad_cuda.cu"),
    capability=(8, 0),
    twice_differentiable=True,
)
def self_test(ops: Any) -> None:
    """Compare with numpy: ragged keys with vectors by distance, frames that only see those before them, dropout.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    batch, heads, queries, keys, size, values, clipping = 3, 2, 7, 70, 5, 19, 4
    lengths = np.array([keys, 0, 33], "int32")
    shapes = [(batch, queries, heads, size), (batch, keys, heads, size), (batch, keys, heads, values)]
    inputs = [rng.normal(0, 1, shape) for shape in (*shapes, (2 * clipping + 1, size))]

    def op(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, table: tf.Tensor) -> list[tf.Tensor]:
        return [native_attention(ops, (q, k, v), size, scale=0.5, lengths=tf.constant(lengths), table=table)]

    def formula(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], table: NDArray[Any]) -> list[NDArray[Any]]:
        mask = np.arange(keys) < lengths[:, None, None]
        distance = np.arange(keys) - np.arange(queries)[:, None]
        return [_formula(q, k, v, 0.5, mask, table[np.clip(distance, -clipping, clipping) + clipping])]

    compare("attention", op, formula, inputs)
    seed, rate, frames = tf.constant([1, 2]), 0.3, 65
    uniform = tf.random.stateless_uniform([batch, heads, frames, frames], seed)
    keep = tf.cast(uniform >= rate, tf.float32).numpy() / (1 - rate)

    def packed(x: tf.Tensor) -> list[tf.Tensor]:
        return [native_attention(ops, [x], size, scale=0.5, causal=True, dropout=rate, seed=seed)]

    def packed_formula(x: NDArray[Any]) -> list[NDArray[Any]]:
        q, k, v = np.split(x, [size, 2 * size], axis=-1)
        mask = np.arange(frames) <= np.arange(frames)[:, None]
        return [_formula(q, k, v, 0.5, mask, np.zeros([frames, frames, size]), keep)]

    compare("attention", packed, packed_formula, [rng.normal(0, 1, (batch, frames, heads, 2 * size + values))])


def _formula(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], scale: float, mask: NDArray[Any], shift: NDArray[Any],
    keep: Any = 1.0,
) -> NDArray[Any]:  # fmt: skip
    """Attention in numpy.

    :param mask: broadcasts to [batch, queries, keys]
    :param shift: [queries, keys, key_size]
    :param keep: factors on the weights
    """
    energies = np.einsum("bthd,bshd->bhts", q, k) + np.einsum("bthd,tsd->bhts", q, shift)
    mask = mask if mask.ndim == 2 else mask[:, None]
    weights = np.where(mask, np.exp(scale * energies), 0.0)
    weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    y: NDArray[Any] = np.einsum("bhts,bshd->bthd", weights * keep, v)
    return y
