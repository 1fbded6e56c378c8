"""Native attention in a beam search: self-attention over keys and values in place, and to frames of a sequence."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf


def beam_attention_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("beam_attention", self_test)


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

    :param ops: what `beam_attention_ops` returned
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

    :param ops: what `beam_attention_ops` returned
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


@register_op(
    "beam_attention",
    kernels=("search/attention_cpu.cc", "search/once_cpu.cc"),
    bindings=("search/attention_op.cc", "search/once_op.cc"),
    cuda=("search/beam_attention_cuda.cu",),
)
def self_test(ops: Any) -> None:
    """Compare with histories that are reordered in numpy, and with copies of frames.

    :raises NativeOpError: they differ
    """
    _test_in_place(ops)
    _test_once(ops)


def _test_once(ops: Any) -> None:
    rng = np.random.RandomState(1)
    queries = rng.normal(0, 1, (6, 2, 19)).astype("float32")
    keys, values = (rng.normal(0, 1, (3, 5, 2, size)).astype("float32") for size in (19, 7))
    lengths = np.array([5, 3, 1, 0, 2, 5])
    energies = 0.5 * np.einsum("bhd,bshd->bhs", queries, keys.repeat(2, axis=0))
    soft = np.exp(energies) * (np.arange(5) < lengths[:, None, None])
    soft /= np.maximum(soft.sum(axis=-1, keepdims=True), 1e-30)
    found = native_once_attention(ops, queries, keys, values, tf.constant(lengths, tf.int32), scale=0.5)
    if not np.allclose(found, np.einsum("bhs,bshd->bhd", soft, values.repeat(2, axis=0)), atol=1e-5):
        raise NativeOpError("the attention to frames of a sequence that was compiled gives wrong results")


def _test_in_place(ops: Any) -> None:
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
