"""`prefix_in_time` and `postfix_in_time`: additional frames before or after every sequence."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerOrNumber, LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis, LayerOrConstant
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.empty_axes import at_least_one
from returnn_tf.ops.frames.pad import fit_axis, pad_axis
from returnn_tf.ops.frames.shape import expand_at, to_layout, transpose
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


def frame_axis(ctx: PlanContext, data: Data, desc: Any) -> int:
    """Return an axis other than batch."""
    axis = ctx.axis(data, desc)
    if axis == data.batch_axis:
        raise ctx.error("the axis cannot be the batch axis of %s." % data)
    return axis


@dataclasses.dataclass(frozen=True, eq=False)
class PrefixInTimePlan(LayerPlan):
    """The plan of `PrefixInTimeLayer`.

    :param axis: the extended one
    """

    axis: int


@register_layer("prefix_in_time")
class PrefixInTimeLayer(ConcatInputLayer, Planned[PrefixInTimePlan]):
    """Puts ``repeat`` frames with a constant in front of every sequence, e.g. the sentence start for labels.

    No parameters. Lengths: ``n + repeat``, per sequence if repeat is a layer.

    Example::

        network = {"output": {"class": "prefix_in_time", "prefix": 1, "repeat": 2, "from": "data:classes"}}
    """

    axis: Axis = option("T", help="the axis to extend")
    prefix: Union[int, float, bool] = option(0.0, help="value of the new frames, a number")
    repeat: LayerOrNumber = option(
        1, help="number of new frames: a number, or a layer with one per sequence", refs=True
    )
    size_base: Optional[LayerRef] = option(None, help="layer whose time axis the output has", refs=True)

    def template(self, ctx: PlanContext) -> PrefixInTimePlan:
        """Infer the output: the axis extended."""
        data = self.input_template(ctx)
        axis = frame_axis(ctx, data, self.axis)
        dim = data.dims[axis]
        if isinstance(self.repeat, Node):
            self._check_repeat(ctx, data, self.repeat)
            new = ctx.new_spatial(None, "prefixed")
        elif isinstance(self.repeat, int) and self.repeat >= 0:
            new = dim + self.repeat
        else:
            raise ctx.error("repeat must be a layer or a number, at least 0; got %r." % (self.repeat,))
        if isinstance(self.size_base, Node):
            base = self.size_base.output.time_dim
            if base is None:
                raise ctx.error("size_base %s has no time axis." % self.size_base.output)
            new = base
        return PrefixInTimePlan(data.with_dim(axis, ctx.bind(self.out_dim, new)), axis)

    def _check_repeat(self, ctx: PlanContext, data: Data, node: Node) -> None:
        output = node.output
        if not output.dtype.startswith(("int", "uint")) or [d for d in output.dims if not d.is_batch and d.size != 1]:
            raise ctx.error("the layer 'repeat' must have one integer per sequence, but it is %s." % output)
        if output.batch_axis is not None and data.batch_axis is None:
            raise ctx.error("the layer 'repeat' is %s, but the source has no batch axis: %s." % (output, data))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a concatenation, or for different numbers of frames a gather."""
        x = self.emit_input(ctx)
        out_dim = ctx.output.dims[self.plan.axis]
        if isinstance(self.repeat, Node):
            return self._emit_shifted(ctx, x, self.repeat)
        y = pad_axis(x, self.plan.axis, self.repeat, 0, self.prefix)
        if self.size_base is None:
            return y
        return fit_axis(y, self.plan.axis, ctx.size(out_dim))

    def _emit_shifted(self, ctx: EmitContext, x: Any, repeat: Node) -> Any:
        data, axis, out_dim = self.input, self.plan.axis, ctx.output.dims[self.plan.axis]
        shift = tf.reshape(tf.cast(ctx.value(repeat), tf.int32), [-1])
        lens = ctx.lens(data.dims[axis]) + shift
        if out_dim.expr is None and self.size_base is None:
            ctx.define_lens(out_dim, lens if lens.shape[0] != 1 or data.batch_axis is not None else lens[0])
        frames = ctx.size(out_dim)
        batch = data.batch_axis
        front = [axis] if batch is None else [batch, axis]
        order = front + [i for i in range(data.rank) if i not in front]
        x = transpose(x, order)
        index = tf.range(frames) - shift[:, None]  # [batch or 1, frames]
        if batch is None:
            index = index[0]
        else:
            index = tf.broadcast_to(index, [tf.shape(x)[0], frames])
        x = at_least_one(x, len(front) - 1)
        source = tf.clip_by_value(index, 0, tf.maximum(ctx.size(data.dims[axis]) - 1, 0))
        y = tf.gather(x, source, axis=len(front) - 1, batch_dims=len(front) - 1)
        is_new = expand_at(index < 0, range(index.shape.rank, data.rank))
        y = tf.where(is_new, tf.cast(self.prefix, y.dtype), y)
        return transpose(y, [order.index(i) for i in range(data.rank)])


@dataclasses.dataclass(frozen=True, eq=False)
class PostfixInTimePlan(LayerPlan):
    """The plan of `PostfixInTimeLayer`.

    :param axis: the extended one
    """

    axis: int


@register_layer("postfix_in_time")
class PostfixInTimeLayer(ConcatInputLayer, Planned[PostfixInTimePlan]):
    """Puts ``repeat`` frames with a constant directly after the last frame of every sequence.

    No parameters. Lengths: ``n + repeat``.

    Example::

        network = {"output": {"class": "postfix_in_time", "postfix": 0.5, "repeat": 2, "from": "data"}}
    """

    axis: Axis = option("T", help="the axis to extend")
    postfix: LayerOrConstant = option(
        0.0, help="value of the new frames: a number, or a layer without this axis", refs=True
    )
    repeat: int = option(1, help="number of new frames")

    def template(self, ctx: PlanContext) -> PostfixInTimePlan:
        """Infer the output: the axis extended."""
        data = self.input_template(ctx)
        axis = frame_axis(ctx, data, self.axis)
        if self.repeat < 0:
            raise ctx.error("repeat must be at least 0, got %d." % self.repeat)
        if isinstance(self.postfix, Node):
            self._check_postfix(ctx, data, axis, self.postfix.output)
        elif not isinstance(self.postfix, (int, float)):
            raise ctx.error("postfix must be a layer or a number, got %r." % (self.postfix,))
        return PostfixInTimePlan(data.with_dim(axis, ctx.bind(self.out_dim, data.dims[axis] + self.repeat)), axis)

    def _check_postfix(self, ctx: PlanContext, data: Data, axis: int, given: Data) -> None:
        rest = data.without_axes([axis])
        mapping = match_axes(given, rest)
        for dim, target in zip(given.dims, mapping):
            if target is None and dim.size != 1:
                raise ctx.error("postfix is %s, but a frame of the source is %s: no axis %s." % (given, rest, dim))
        if given.dtype != data.dtype:
            raise ctx.error("postfix is %s, but the source is %s. Cast one of them." % (given.dtype, data.dtype))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a longer array, and a where beyond the ends."""
        data, axis = self.input, self.plan.axis
        x = self.emit_input(ctx)
        value = self.postfix
        if isinstance(value, Node):
            rest = data.without_axes([axis])
            value = tf.expand_dims(to_layout(ctx.value(value), value.output, rest), axis)
        elif not data.dims[axis].is_dynamic():
            return pad_axis(x, axis, 0, self.repeat, value)
        y = pad_axis(x, axis, 0, self.repeat)
        if data.dims[axis].is_dynamic():
            inside = pad_axis(ctx.mask(data, axis), axis, 0, self.repeat, False)
        else:
            frames = tf.range(ctx.size(ctx.output.dims[axis])) < ctx.size(data.dims[axis])
            inside = expand_at(frames, [i for i in range(data.rank) if i != axis])
        return tf.where(inside, y, tf.cast(value, y.dtype))
