"""Convolution of N tensors along one to three axes, in forms that have gradients on CPU, too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional, Union

from returnn_tf.native.dispatch import LEAST_WIDTH, form, plain_form
from returnn_tf.native.fused.depthwise import depthwise_ops, native_depthwise
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.ops.frames.empty_axes import End, cut, none_or_more, without_empty_axes
from returnn_tf.ops.frames.shape import size_of, sizes_of, transpose, with_sizes
from returnn_tf.ops.mixed_precision import reduced
from returnn_tf.util.lazy_tf import tf

#: "same", "valid", or frames (before, after).
AxisPadding = Union[str, tuple[int, int]]


def _depthwise_ops(
    x: Any, w: Any, *, strides: Any = None, groups: int = 1, padding: Any, train: bool = False, **_: Any
) -> Any:
    """Return the native ops if they have this convolution: along one axis, in training, a filter for each channel.

    They are faster in float32 than TensorFlow's op is on numbers of fewer digits.
    """
    fits = x.dtype == tf.float32 and groups == x.shape[-1] == w.shape[-1] and groups >= LEAST_WIDTH
    has_op = train and fits and len(padding) == 1 and (strides or [1])[0] == 1
    ops = depthwise_ops() if has_op else None
    return ops if ops is not None and pays(DEPTHWISE_TRIAL, groups, x.dtype) else None


def _native_depthwise(
    ops: Any, x: Any, w: Any, *, bias: Any = None, dilations: Any = None, padding: Any, **_: Any
) -> Any:
    (dilation,), (pad,) = dilations or [1], padding
    extent = (int(w.shape[0]) - 1) * dilation + 1
    left, right = same_padding(extent, extent, 1) if pad == "same" else (0, 0) if pad == "valid" else pad
    y = native_depthwise(ops, x, tf.squeeze(w, 1), bias, dilation=dilation, left=left, right=right)
    frames = x.shape[1]
    y.set_shape([None, None if frames is None else max(0, frames + left + right - extent + 1), None])
    return y


@form(_native_depthwise, where=_depthwise_ops)
def convolution(
    x: Any,
    w: Any,
    *,
    bias: Optional[Any] = None,
    strides: Optional[Sequence[int]] = None,
    dilations: Optional[Sequence[int]] = None,
    groups: int = 1,
    padding: Sequence[AxisPadding],
    train: bool = False,
    product_dtype: Optional[str] = None,
) -> Any:
    """Compute the cross-correlation.

    ``y[n, t, o] = bias[o] + sum over k, c of x[n, t * stride + k * dilation - left, c] * w[k, c, o]``

    :param x: [N, spatial..., in]
    :param w: [filter..., in / groups, out]; outputs of group g see the inputs of group g
    :param bias: [out]
    :param train: else the graph may be exported, and needs no library for this
    :param product_dtype: type of the operands, see `Semantics`
    :return: [N, spatial'..., out], of that type, or float32 if the native op computes it
    """
    x, w, bias = (reduced(part, product_dtype) for part in (x, w, bias))
    rank = len(padding)
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    ends = ends_of_windows(strides, padding)
    y = without_empty_axes(x, ends, lambda x: _convolved(x, w, strides, dilations, groups, padding))
    return y if bias is None else tf.nn.bias_add(y, bias)


def ends_of_windows(strides: Sequence[int], padding: Sequence[AxisPadding]) -> list[Optional[End]]:
    """Return for `without_empty_axes` the numbers of windows along each spatial axis that may be empty."""
    return [partial(_windows, stride) if pad == "same" else None for stride, pad in zip(strides, padding)]


def _windows(stride: int, length: Any) -> Any:
    return -(-length // stride)


def _convolved(
    x: Any, w: Any, strides: Sequence[int], dilations: Sequence[int], groups: int, padding: Sequence[AxisPadding]
) -> Any:
    rank = len(padding)
    size = [int(k) for k in w.shape[:rank]]
    plain = all(p == padding[0] for p in padding) and isinstance(padding[0], str)
    both = any(s > 1 for s in strides) and any(d > 1 for d in dilations)
    if groups == 1 and plain and padding[0] == "same" and not both:
        return tf.nn.convolution(x, w, strides=strides, padding="SAME", dilations=dilations)
    x, frames = pad_spatial(x, size, strides, dilations, padding)
    if groups > 1 and groups == x.shape[-1]:
        y = _depthwise(x, w, strides, dilations)
    elif groups > 1:
        y = _grouped(x, w, strides, dilations, groups)
    elif both:  # TensorFlow takes one of them at a time
        y = tf.nn.convolution(x, w, padding="VALID", dilations=dilations)
        y = y[(slice(None),) + tuple(slice(None, None, s) for s in strides)]
    else:
        y = tf.nn.convolution(x, w, strides=strides, padding="VALID", dilations=dilations)
    return cut_spatial(y, frames)


def pad_spatial(
    x: Any,
    size: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[AxisPadding],
    *,
    value: Any = 0,
) -> tuple[Any, list[Any]]:
    """Pad the spatial axes of [N, spatial..., channels] so that an unpadded operation gives the requested result.

    An axis shorter than the window is padded to the window, since not all kernels accept empty outputs.

    :return: the tensor, and for `cut_spatial` the number of output frames per axis, None for no cut
    """
    pads: list[Any] = []
    frames: list[Any] = []
    for i, (k, stride, dilation, pad) in enumerate(zip(size, strides, dilations, padding)):
        extent = (k - 1) * dilation + 1
        if pad == "same":
            pads.append(same_padding(size_of(x, i + 1), extent, stride))
            frames.append(None)
            continue
        left, right = (0, 0) if isinstance(pad, str) else pad
        length = size_of(x, i + 1) + left + right
        may_lack = length < extent if isinstance(length, int) else extent > left + right
        frames.append(none_or_more(-(-(length - extent + 1) // stride)) if may_lack else None)
        pads.append((left, right + none_or_more(extent - length) if may_lack else right))
    if all(isinstance(p, int) and p == 0 for pair in pads for p in pair):
        return x, frames
    y = tf.pad(x, [(0, 0)] + pads + [(0, 0)], constant_values=value)
    return with_sizes(y, [x.shape[0]] + [None] * len(pads) + [x.shape[-1]]), frames


def cut_spatial(y: Any, frames: Sequence[Any]) -> Any:
    """Keep the first frames of each spatial axis of [N, spatial..., channels]; None: all."""
    return cut(y, [None, *frames])


def same_padding(length: Any, extent: int, stride: int) -> tuple[Any, Any]:
    """Return the frames (before, after) for ``ceil(length / stride)`` outputs; the odd one is after.

    :param length: int or scalar tensor
    """
    total = (-(-length // stride) - 1) * stride + extent - length
    total = none_or_more(total)
    return total // 2, total - total // 2


def _depthwise(x: Any, w: Any, strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Convolve without padding, every group being one input channel."""
    channels, rank = x.shape[-1], len(strides)
    size = w.shape[:rank].as_list()
    w = tf.reshape(w, size + [channels, -1])
    if rank == 1 and 1 in (strides[0], dilations[0]):
        # TensorFlow's CPU kernel crashes, or gives wrong gradients, if the filter is long in the second axis (2.16).
        y = tf.nn.depthwise_conv2d(
            x[:, :, None], w[:, None], [1, strides[0], strides[0], 1], "VALID", dilations=[dilations[0], 1]
        )
        return y[:, :, 0]
    out = _unpadded_lengths(x, size, strides, dilations)
    total: Any = None
    for position in itertools.product(*map(range, size)):
        part = x[(slice(None),) + tuple(map(_strided, position, dilations, strides, out))]
        part = part[..., None] * w[position]
        total = part if total is None else total + part
    return tf.reshape(total, tf.stack([-1] + out + [channels * int(w.shape[-1])]))


def _grouped(x: Any, w: Any, strides: Sequence[int], dilations: Sequence[int], groups: int) -> Any:
    """Convolve without padding, with one matrix product per group and filter position.

    TensorFlow has no gradient for grouped convolutions on CPU.
    """
    rank = len(strides)
    size = [int(k) for k in w.shape[:rank]]
    per_group, n_out = int(w.shape[-2]), int(w.shape[-1])
    out = _unpadded_lengths(x, size, strides, dilations)
    x = tf.reshape(x, tf.stack([-1] + sizes_of(x)[1:-1] + [groups, per_group]))
    x = transpose(x, [rank + 1] + list(range(rank + 1)) + [rank + 2])  # [groups, N, spatial..., in / groups]
    w = tf.reshape(w, size + [per_group, groups, n_out // groups])
    w = transpose(w, list(range(rank)) + [rank + 1, rank, rank + 2])  # [filter..., groups, in / groups, out / groups]
    total: Any = None
    for position in itertools.product(*map(range, size)):
        part = x[(slice(None), slice(None)) + tuple(map(_strided, position, dilations, strides, out))]
        part = tf.matmul(tf.reshape(part, [groups, -1, per_group]), w[position])
        total = part if total is None else total + part
    y = tf.reshape(total, tf.stack([groups, -1] + out + [n_out // groups]))
    y = transpose(y, list(range(1, rank + 2)) + [0, rank + 2])
    return tf.reshape(y, tf.stack([-1] + out + [n_out]))


def _unpadded_lengths(x: Any, size: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Any]:
    """Return the output lengths of [N, spatial..., channels] without padding."""
    lengths = [size_of(x, 1 + i) for i in range(len(size))]
    return [-(-(n - (k - 1) * d) // s) for n, k, d, s in zip(lengths, size, dilations, strides)]


def _strided(position: int, dilation: int, stride: int, count: Any) -> slice:
    start = position * dilation
    return slice(start, start + (count - 1) * stride + 1, stride)


def _case(size: Size) -> Case:
    """Return the convolution of a Conformer, with a filter of 31 frames."""
    inputs = draw((1.0, (size.batch, size.frames, size.width)), (0.2, (31, 1, size.width)), (1.0, (size.width,)))
    options = {"groups": size.width, "padding": ["same"], "train": True}

    def native(ops: Any, x: Any, w: Any, bias: Any) -> list[Any]:
        return [_native_depthwise(ops, x, w, bias=bias, **options)]

    return Case(inputs, native, lambda x, w, bias: [plain_form(convolution)(x, w, bias=bias, **options)])


DEPTHWISE_TRIAL = Trial(
    "depthwise convolution", "depthwise", __name__, "DEPTHWISE_TRIAL", _case, "channels", (128, 512, 2048)
)
