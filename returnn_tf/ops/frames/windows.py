"""Windows of neighbouring frames, overlap-add, and padding around a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.ops.frames.empty_axes import none_or_more
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import size_of
from returnn_tf.util.lazy_tf import tf


def sliding_windows(x: Any, size: int, *, stride: int = 1) -> Any:
    """Return ``y[i, t] = x[t * stride + i]`` by a fixed number of ops for every window size.

    Repeating the frames and reading them in rows that are one frame longer shifts each row by one frame.

    :param x: [frames, ...]; at least ``size - 1`` frames
    :return: [size, ceil((frames - size + 1) / stride), ...]
    """
    x = pad_axis(x, 0, 0, 1)  # so that there are enough frames to read even if there is no window
    frames = size_of(x, 0)
    rest = [size_of(x, i) for i in range(1, x.shape.rank)]
    y = tf.tile(x[None], [size + 1] + [1] * x.shape.rank)
    y = tf.reshape(y, tf.stack([(size + 1) * frames] + rest))[: size * (frames + 1)]
    y = tf.reshape(y, tf.stack([size, frames + 1] + rest))[:, : frames - size]
    return y[:, ::stride] if stride != 1 else y


def overlap_add(x: Any, *, stride: int = 1) -> Any:
    """Transpose `sliding_windows`: ``y[s] = sum of x[i, t] over all i, t with s = t * stride + i``.

    :param x: [size, windows, ...]
    :return: [windows * stride + size - 1, ...]; the last ``stride - 1`` frames are 0
    """
    size, rest = size_of(x, 0), [size_of(x, i) for i in range(2, x.shape.rank)]
    if stride != 1:
        zeros = [(0, 0)] * (x.shape.rank + 1)
        zeros[2] = (0, stride - 1)
        x = tf.reshape(tf.pad(x[:, :, None], zeros), tf.stack([size, size_of(x, 1) * stride] + rest))
    windows = size_of(x, 1)
    frames = windows + size - 1
    none = [(0, 0)] * (x.shape.rank - 2)
    y = tf.pad(x, [(0, 0), (0, size)] + none)  # rows of frames + 1
    y = tf.reshape(y, tf.stack([size * (frames + 1)] + rest))
    y = tf.pad(y, [(0, none_or_more(windows - 1))] + none)[: (size + 1) * frames]  # without windows there is more
    return tf.reduce_sum(tf.reshape(y, tf.stack([size + 1, frames] + rest)), axis=0)


def axis_slice(x: Any, axis: int, start: Any, stop: Any) -> Any:
    """Return ``x[..., start:stop, ...]`` on one axis."""
    return x[(slice(None),) * axis + (slice(start, stop),)]


def interleave(parts: Sequence[Any], axis: int) -> Any:
    """Interleave parts of equal shape: frame 0 of all parts, then frame 1 of all parts, and so on."""
    y = tf.stack(list(parts), axis=axis + 1)
    shape = [size_of(parts[0], i) for i in range(parts[0].shape.rank)]
    shape[axis] = shape[axis] * len(parts)
    return tf.reshape(y, tf.stack(shape))
