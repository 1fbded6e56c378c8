"""Transposed convolution of N tensors along one to three axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from returnn_tf.ops.frames.empty_axes import without_empty_axes
from returnn_tf.ops.frames.shape import size_of
from returnn_tf.util.lazy_tf import tf


def transposed_length(length: Any, size: int, stride: int, padding: str, output_padding: Optional[int] = None) -> Any:
    """Return the number of output frames.

    :param length: of the input; int, int tensor, or anything that can be multiplied with and added to ints
    :param padding: "same" or "valid"
    :param output_padding: exact number of frames after those of the last input frame; None: as many as fit
    """
    if output_padding is None:
        grown = length * stride
        return grown + max(size - stride, 0) if padding == "valid" else grown
    return (length - 1) * stride + size + output_padding - (2 * (size // 2) if padding == "same" else 0)


def transposed_convolution(
    x: Any,
    w: Any,
    *,
    strides: Sequence[int],
    padding: str,
    output_padding: Optional[Sequence[Optional[int]]] = None,
    remove_padding: Sequence[int] = (),
) -> Any:
    """Apply the gradient of a convolution w.r.t. its input, as a layer (Zeiler et al. 2010).

    Without padding, output frame ``t * stride + k`` gets ``sum over c of x[n, t, c] * w[k, o, c]``.

    :param x: [N, spatial..., in]
    :param w: [filter..., out, in]
    :param padding: "same": ``length * stride`` frames, cut at both ends; "valid": all
    :param remove_padding: frames to cut at both ends of each axis, after everything else
    :return: [N, spatial'..., out]
    """
    rank = len(strides)
    size = [int(k) for k in w.shape[:rank]]
    lengths = [size_of(x, i + 1) for i in range(rank)]
    extra: list[Optional[int]] = [None] * rank if output_padding is None else list(output_padding)
    exact = any(p is not None for p in extra)
    mode = "valid" if exact else padding
    ends = [partial(transposed_length, size=k, stride=s, padding=mode) for k, s in zip(size, strides)]

    def run(x: Any) -> Any:
        full = tf.stack([tf.shape(x)[0], *(end(size_of(x, i + 1)) for i, end in enumerate(ends)), w.shape[rank]])
        return tf.nn.conv_transpose(x, w, full, list(strides), padding=mode.upper())

    y = without_empty_axes(x, ends, run)
    if exact:
        y = _cut_exactly(y, lengths, size, strides, padding, extra)
    for i, cut in enumerate(remove_padding):
        if cut:
            end = tf.maximum(size_of(y, i + 1) - cut, cut)
            y = y[(slice(None),) * (i + 1) + (slice(cut, end),)]
    return y


def _cut_exactly(
    y: Any, lengths: Sequence[Any], size: Sequence[int], strides: Sequence[int], padding: str, extra: Sequence[Any]
) -> Any:
    """Crop or zero-pad all axes to `transposed_length`; half of what is cut is cut at the front."""
    for i, (n, k, s, p) in enumerate(zip(lengths, size, strides, extra)):
        most = max if isinstance(n, int) else tf.maximum
        wanted = most(transposed_length(n, k, s, padding, p), 0)
        left = most((n - 1) * s + k - wanted, 0) // 2
        pads = [(0, 0)] * y.shape.rank
        pads[i + 1] = (0, tf.maximum(left + wanted - size_of(y, i + 1), 0))
        y = tf.pad(y, pads)
        y = y[(slice(None),) * (i + 1) + (slice(left, left + wanted),)]
    return y
