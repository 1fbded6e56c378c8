"""Resampling of axes by interpolation."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.frames.empty_axes import without_empty_axes
from returnn_tf.util.lazy_tf import tf

_KINDS: dict[str, Callable[[], Any]] = {
    "nn": lambda: tf.raw_ops.ResizeNearestNeighbor,
    "linear": lambda: tf.raw_ops.ResizeBilinear,
    "cubic": lambda: tf.raw_ops.ResizeBicubic,
}
#: Kinds of interpolation.
RESIZE_KINDS = sorted(_KINDS)


def resize(x: Any, kind: str, size: Any) -> Any:
    """Resample so that frame t of the output is at ``t * frames / size`` of the input.

    :param x: [batch, frames, features]
    :param kind: "nn": the frame before that position; "linear" and "cubic": interpolated; these give float32
    :param size: number of frames, int or scalar tensor
    :return: [batch, size, features]
    """
    # The kernels take neither no frames nor a result without any.
    count = size if isinstance(size, int) or in_portable_ops() else tf.maximum(size, 1)

    def run(x: Any) -> Any:
        options = {"align_corners": False, "half_pixel_centers": False}
        return _KINDS[kind]()(images=x[:, :, None], size=tf.stack([count, 1]), **options)[:, :, 0]

    return without_empty_axes(x, [lambda _: size], run)
