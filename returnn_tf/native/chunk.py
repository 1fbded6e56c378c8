"""Native cutting of sequences into chunks, and the inverse, with gradients."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def chunk_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("chunk", self_test)


def native_chunk(ops: Any, x: tf.Tensor, size: int, step: int) -> tf.Tensor:
    """Cut sequences into chunks, in float32; see `returnn_tf.ops.frames.chunks.chunk`.

    :param ops: what `chunk_ops` returned
    """
    return _run(ops.rtf_chunk, _unchunk(ops), x, None, size, step, mean=False)


def native_unchunk(ops: Any, chunks: tf.Tensor, frames: tf.Tensor, size: int, step: int) -> tf.Tensor:
    """Join chunks, in float32; see `returnn_tf.ops.frames.chunks.unchunk`.

    :param ops: what `chunk_ops` returned
    """
    return _run(_unchunk(ops), ops.rtf_chunk, chunks, frames, size, step, mean=True)


def _unchunk(ops: Any) -> Callable[..., tf.Tensor]:
    return lambda x, frames, **options: ops.rtf_unchunk(chunks=x, frames=frames, **options)


def _run(
    forward: Callable[..., tf.Tensor], backward: Callable[..., tf.Tensor], x: tf.Tensor, frames: Any, *sizes: int,
    mean: bool,
) -> tf.Tensor:  # fmt: skip
    """Run an op whose gradient is the inverse op, which needs the number of frames."""
    options = {"size": sizes[0], "step": sizes[1], "mean": mean}
    rest = tf.shape(x)[2:]
    flat = tf.reshape(x, tf.concat([tf.shape(x)[:2], [tf.reduce_prod(rest)]], axis=0))

    @custom_gradient
    def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        if frames is None:
            return forward(x=x, **options), lambda grad: backward(grad, tf.shape(x)[0], **options)
        return forward(x, frames, **options), lambda grad: backward(x=grad, **options)

    y = run(flat)
    y = tf.reshape(y, tf.concat([tf.shape(y)[:2], rest], axis=0))
    y.set_shape([None if frames is not None else sizes[0], None, *x.shape[2:]])
    return y


@register_op(
    "chunk",
    kernels=("chunk/chunk_cpu.cc",),
    bindings=("chunk/chunk_op.cc",),
    cuda=("chunk/chunk_cuda.cu",),
    replaces=("Chunking", "UnChunking"),
)
def self_test(ops: Any) -> None:
    """Compare with slices in numpy.

    :raises NativeOpError: they differ
    """
    size, step, count = 4, 3, 3
    x = np.random.RandomState(1).normal(0, 1, (9, 2, 3))

    def op(x: tf.Tensor) -> list[tf.Tensor]:
        chunks = native_chunk(ops, x, size, step)
        return [chunks, native_unchunk(ops, chunks * chunks, tf.constant(9), size, step)]

    def formula(x: NDArray[Any]) -> list[NDArray[Any]]:
        padded = np.pad(x, [(0, size), (0, 0), (0, 0)])
        rows = [padded[c * step : c * step + size, b] for b in range(2) for c in range(count)]
        return [np.stack(rows, axis=1), x * x]

    compare("chunks", op, formula, [x])
