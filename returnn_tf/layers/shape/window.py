"""`window` and `fold`: neighbouring frames as an axis, and the inverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.block_end import frames_before
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of, with_frames
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import expand_at, transpose
from returnn_tf.ops.frames.windows import axis_slice, overlap_add, sliding_windows
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


def window_sides(ctx: PlanContext, size: Optional[int], left: Optional[int], right: Optional[int]) -> tuple[int, int]:
    """Return the numbers of frames before and after the current one.

    :raises ConfigError: if the numbers contradict each other
    """
    if size is None:
        if left is None or right is None:
            raise ctx.error("the size of the window is missing: give window_size, window_dim, or both of its sides.")
        size = left + right + 1
    if left is None and right is None:
        right = size // 2
    if left is None:
        left = size - (right or 0) - 1
    if right is None:
        right = size - left - 1
    if left + right + 1 != size:
        raise ctx.error("window_left %d + window_right %d + 1 is not window_size %d." % (left, right, size))
    return left, right


def check_window_padding(ctx: PlanContext, padding: str) -> str:
    """Return the padding mode in lower case."""
    if padding.lower() not in ("same", "valid"):
        raise ctx.error("padding must be 'same' or 'valid', not %r." % padding)
    return padding.lower()


@dataclasses.dataclass(frozen=True, eq=False)
class WindowPlan(LayerPlan):
    """The plan of `WindowLayer`.

    :param frames: the input, with the axis of the steps if the window is along that
    :param axis: that of the window, in ``frames``; None: it is along the steps of a loop
    :param valid: whether only windows without padding count
    :param left: frames before the current one
    :param right: frames after the current one
    :param size: of the window
    :param order: of the axes of ``frames`` in the output
    :param window_axis: index of the window in the output
    """

    frames: Data
    axis: Optional[int]
    valid: bool
    left: int
    right: int
    size: int
    order: Sequence[int]
    window_axis: int


@register_layer("window")
class WindowLayer(ConcatInputLayer, Planned[WindowPlan]):
    """``y[i, t] = x[t * stride + i - left]``: the frames around each frame as a new axis.

    Beyond the ends of the array there are zeros; frames after the end of a sequence are unchanged. With padding
    "same" and only window_size, ``floor(size / 2)`` frames are after the current one, all others before. The frame
    axis and the window become the first axes: [window, time, others], but [time, window, others] with a stride or
    out_spatial_dim. Where the features are in front of the frames, [batch, feature, time], the window becomes the
    feature axis. Before behavior version 18 the output is [batch, time, window, others].
    Inside of a loop, and without a time axis, the window has the current step and those before it; window_right must be
    0 then. A window that ends before the next one begins its stride (window_right below stride) goes on from block to
    block of frames.

    No parameters. Lengths: "same" ``ceil(n / stride)``, "valid" ``ceil((n - size + 1) / stride)``, at least 0.

    Example::

        network = {"output": {"class": "window", "window_size": 3, "from": "data"}}
    """

    has_memory = True
    computes_all_steps = True
    joins_features = True
    window_size: Optional[int] = option(None, help="number of frames")
    window_dim: Optional[Dim] = option(None, help="the new axis")
    window_left: Optional[int] = option(None, help="number of frames before the current one")
    window_right: Optional[int] = option(None, help="number of frames after the current one")
    axis: Axis = option("T", help="the frame axis")
    out_spatial_dim: Optional[Dim] = option(None, help="the frame axis of the output")
    padding: str = option("same", help="'same' or 'valid'")
    stride: int = option(1, help="distance between windows in frames")

    def template(self, ctx: PlanContext) -> WindowPlan:
        """Infer the output: a new axis."""
        data, axis = frames_of(ctx, self.input_template(ctx), self.axis)
        if axis is not None and axis == data.batch_axis:
            raise ctx.error("a window cannot go along the batch axis.")
        if self.stride < 1:
            raise ctx.error("stride must be at least 1, got %d." % self.stride)
        valid = check_window_padding(ctx, self.padding) == "valid"
        size = self._given_size(ctx)
        if valid and size is not None and self.window_left is None and self.window_right is None:
            left, right = 0, size - 1
        else:
            left, right = window_sides(ctx, size, self.window_left, self.window_right)
        size = left + right + 1
        if size < 1:
            raise ctx.error("the window must have at least one frame, got %d." % size)
        window = ctx.bind(self.window_dim, ctx.new_spatial(size, "window"))
        order = self._layout(ctx, data, axis)
        planned = partial(
            WindowPlan, frames=data, axis=axis, valid=valid, left=left, right=right, size=size, order=order
        )
        in_loop = axis is None or data.dims[axis].is_loop
        if in_loop and (valid or self.stride != 1):
            raise ctx.error("in a loop there is a window for every step: omit padding and stride.")
        if axis is None:
            if right:
                raise ctx.error("in a loop a window has only steps up to the current one: set window_right to 0.")
            out = data.permuted(order)
            at = 0 if ctx.behavior_version >= 18 else 1 if out.batch_axis == 0 else 0
            # The state is all but the last frame of the window of the next step.
            state = out.with_axis(at, ctx.new_spatial(size - 1, "earlier"))
            ctx.loop_state("earlier", state, lambda emit: tf.zeros(tf.stack(emit.shape(state)), state.dtype))
            return planned(out.with_axis(at, window).replace(vocab=None), window_axis=at)
        dim = data.dims[axis]
        new = (dim - (size - 1) if valid else dim).ceildiv_right(self.stride)
        new = ctx.bind(self.out_spatial_dim, new)
        out = data.permuted(order)
        at = order.index(axis)
        out = out.with_dim(at, new)
        if ctx.behavior_version < 18:
            return planned(out.with_axis(at + 1, window).replace(vocab=None), window_axis=at + 1)
        at = 0 if dim.is_loop or (self.stride == 1 and self.out_spatial_dim is None) else 1
        is_feature = data.feature_axis is not None and data.feature_axis < axis and not dim.is_loop
        return planned(out.with_axis(at, window, feature=is_feature).replace(vocab=None), window_axis=at)

    def _given_size(self, ctx: PlanContext) -> Optional[int]:
        given = None if self.window_dim is None else self.window_dim.size
        if given is not None and self.window_size not in (None, given):
            raise ctx.error("window_size is %s, but window_dim has size %d." % (self.window_size, given))
        return self.window_size if given is None else given

    def _layout(self, ctx: PlanContext, data: Data, axis: Optional[int]) -> list[int]:
        """Return the order of the axes of the source in the output."""
        order = list(range(data.rank))
        if axis is not None and data.dims[axis].is_loop:  # its position does not affect other axes
            order.remove(axis)
            order.insert(0, axis)
        first = axis if axis is not None and ctx.behavior_version >= 18 else data.batch_axis
        if first is not None:
            order.remove(first)
            order.insert(0, first)
        return order

    def emit(self, ctx: EmitContext) -> Any:
        """Emit zeros at the ends, then windows along the first axis."""
        plan = self.plan
        x = with_frames(ctx, self.emit_input(ctx), self.input, plan.frames)
        if plan.axis is None:
            x = tf.expand_dims(transpose(x, self.plan.order), self.plan.window_axis)
            frames = tf.concat([ctx.loop_state("earlier"), x], axis=self.plan.window_axis)
            ctx.set_loop_state("earlier", axis_slice(frames, self.plan.window_axis, 1, None))
            return frames
        computed = [plan.axis] + [i for i in plan.order if i != plan.axis]
        if self._looks_back(ctx):
            before = frames_before(ctx, plan.frames, plan.axis, plan.left, x)
            x = transpose(tf.concat([before, x], axis=plan.axis), computed)
            x = pad_axis(x, 0, 0, plan.right)
        else:
            x = self._padded(transpose(x, computed))
        y = sliding_windows(x, self.plan.size, stride=self.stride)
        places = [computed.index(axis) + 1 for axis in self.plan.order]  # of the axes of the output behind the window
        places.insert(self.plan.window_axis, 0)
        return transpose(y, places)

    def _looks_back(self, ctx: EmitContext) -> bool:
        """Return whether frames of the block before are part of a window, and none of the block after it."""
        plan = self.plan
        assert plan.axis is not None
        is_stream = ctx.continues and plan.frames.dims[plan.axis].is_dynamic()
        return is_stream and not plan.valid and plan.left > 0 and plan.right < self.stride

    def _padded(self, x: Any) -> Any:
        if not self.plan.valid:
            return pad_axis(x, 0, self.plan.left, self.plan.right)
        frames = x.shape[0]
        if frames is None:
            return pad_axis(x, 0, 0, tf.maximum(self.plan.size - 1 - tf.shape(x)[0], 0))
        return pad_axis(x, 0, 0, max(self.plan.size - 1 - frames, 0))


@dataclasses.dataclass(frozen=True, eq=False)
class FoldPlan(LayerPlan):
    """The plan of `FoldLayer`.

    :param axes: order of the axes of the input: the window, the frames, all others
    :param left: frames of the first window that are before the first frame
    """

    axes: Sequence[int]
    left: int


@register_layer("fold")
class FoldLayer(ConcatInputLayer, Planned[FoldPlan]):
    """The inverse of `window`: ``y[s] = sum of x[i, t] over all i, t with s = t * stride + i - left``, or their mean.

    Frames t after the end of a sequence don't count, nor in a mean. The output is [out_spatial, others].

    No parameters. Lengths: padding "same" ``n * stride``, "valid" ``(n - 1) * stride + size``.

    Example::

        from returnn_tf.tensor import SpatialDim
        window = SpatialDim("window", 3)
        network = {
            "window": {"class": "window", "window_dim": window, "from": "data"},
            "output": {"class": "fold", "mode": "mean", "in_spatial_dim": "T", "window_dim": window, "from": "window"}}
    """

    mode: str = option("sum", choices=("sum", "mean"), help="how to combine overlapping windows")
    in_spatial_dim: Axis = option("T", help="the axis of the windows")
    window_dim: Axis = option(help="the axis of the frames in a window, static")
    out_spatial_dim: Optional[Dim] = option(None, help="the frame axis of the output")
    padding: str = option("same", help="'same' or 'valid'")
    window_left: Optional[int] = option(None, help="number of frames in a window before its centre")
    window_right: Optional[int] = option(None, help="number of frames in a window after its centre")
    stride: int = option(1, help="distance of neighbouring windows")

    def template(self, ctx: PlanContext) -> FoldPlan:
        """Infer the output: one axis less, the frames first."""
        data = self.input_template(ctx)
        if data.dtype in ("bool", "string") or (self.mode == "mean" and data.dtype.startswith(("int", "uint"))):
            raise ctx.error("mode %r needs numbers of another type than %s. Cast the source." % (self.mode, data))
        axes = [ctx.axis(data, self.window_dim), ctx.axis(data, self.in_spatial_dim)]
        axes += [i for i in range(data.rank) if i not in axes]
        size = ctx.need_static(data.dims[axes[0]], "window_dim")
        valid = check_window_padding(ctx, self.padding) == "valid"
        left = 0 if valid else window_sides(ctx, size, self.window_left, self.window_right)[0]
        dim = data.dims[axes[1]]
        new = (dim - 1) * self.stride + size if valid else dim * self.stride
        out = data.permuted(axes).without_axes([0]).replace(vocab=None)
        return FoldPlan(out.with_dim(0, ctx.bind(self.out_spatial_dim, new)), axes, left)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit overlapping windows added, cut to the frames."""
        data = self.input
        x = transpose(self.emit_input(ctx), self.plan.axes)
        mask = ctx.masks(data, [self.plan.axes[1]])
        if mask is not None:
            mask = transpose(mask, self.plan.axes)
            x = tf.where(mask, x, tf.zeros_like(x))
        y = self._fold(ctx, x)
        if self.mode == "sum":
            return y
        count = tf.ones(tf.shape(x)[:2], x.dtype)
        count = expand_at(count, range(2, x.shape.rank))
        if mask is not None:
            count = count * tf.cast(mask, x.dtype)
        count = self._fold(ctx, count)
        return y / tf.where(tf.equal(count, 0), tf.ones_like(count), count)

    def _fold(self, ctx: EmitContext, x: Any) -> Any:
        y = axis_slice(overlap_add(x, stride=self.stride), 0, self.plan.left, None)
        frames = ctx.size(ctx.output.dims[0])
        missing = frames - tf.shape(y)[0]
        return axis_slice(pad_axis(y, 0, 0, tf.maximum(missing, 0)), 0, 0, frames)
