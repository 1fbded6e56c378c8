"""`seq_len_mask`: padded frames set to a value; `boolean_mask`: only the entries that a mask selects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Number
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import with_frames, with_steps_of
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SeqLenMaskPlan(LayerPlan):
    """The plan of `SeqLenMaskLayer`.

    :param masked: the axis with the mask
    """

    masked: int


@register_layer("seq_len_mask")
class SeqLenMaskLayer(ConcatInputLayer, Planned[SeqLenMaskPlan]):
    """Frames outside the sequence, or outside a window in it, are set to ``mask_value``.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "seq_len_mask", "axis": "T", "mask_value": 0.0, "from": "data"}}
    """

    mask_value: Number = option(help="value of the masked frames")
    axis: AxisOption = option("T", help="the frame axis")
    seq_len_source: Optional[LayerRef] = option(
        None, help="layer with other lengths: its values, or those of its time axis", refs=True
    )
    start: Union[None, int, str] = option(None, help="int or layer: mask frames before this one too", refs=True)
    window_start: Union[None, int, str] = option(None, help="int or layer: first frame of the window", refs=True)
    window_size: Union[None, int, str] = option(None, help="int or layer: size of the window", refs=True)

    def template(self, ctx: PlanContext) -> SeqLenMaskPlan:
        """Return the template of the source."""
        lens = self.seq_len_source
        numbers = [self.start, self.window_start, self.window_size]
        numbers += [lens] if lens is not None and lens.output.time_dim is None else []
        data = with_steps_of(ctx, self.input_template(ctx), numbers)
        masked = ctx.axis(data, self.axis)
        if (self.window_start is None) != (self.window_size is None):
            raise ctx.error("window_start and window_size belong together. Give both or none.")
        for name in ("start", "window_start", "window_size", "seq_len_source"):
            node = getattr(self, name)
            if isinstance(node, Node) and not (name == "seq_len_source" and node.output.time_dim is not None):
                gone = [d for d, a in zip(node.output.dims, match_axes(node.output, data)) if a is None and d.size != 1]
                if gone:
                    raise ctx.error("%s: %s has the axis %s, which the source lacks." % (name, node.output, gone[0]))
        return SeqLenMaskPlan(data, masked)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one where op."""
        x = with_frames(ctx, self.emit_input(ctx), self.input, ctx.output)
        masks = self._masks(ctx)
        if not masks:
            return x
        mask = masks[0]
        for other in masks[1:]:
            mask = tf.logical_and(mask, other)
        return tf.where(mask, x, tf.cast(self.mask_value, x.dtype))

    def _masks(self, ctx: EmitContext) -> list[Any]:
        data, axis = ctx.output, self.plan.masked
        position = tf.reshape(tf.range(ctx.size(data.dims[axis])), [-1 if a == axis else 1 for a in range(data.rank)])

        def number(value: Any) -> Any:
            return tf.cast(ctx.broadcast(value, data), tf.int32) if isinstance(value, Node) else value

        masks = []
        lens = self.seq_len_source
        if lens is not None and lens.output.time_dim is not None:
            at = data.with_dim(axis, lens.output.time_dim)
            own = ctx.lens(lens.output.time_dim)
            assert at.batch_axis is not None or own.shape.rank == 0
            shape = [-1 if a == at.batch_axis and own.shape.rank else 1 for a in range(data.rank)]
            masks.append(position < tf.reshape(own, shape))
        elif lens is not None:
            masks.append(position < number(lens))
        elif data.dims[axis].is_dynamic():
            masks.append(ctx.mask(data, axis))
        if self.start is not None:
            masks.append(position >= number(self.start))
        if self.window_start is not None:
            first = number(self.window_start)
            masks += [position >= first, position < first + number(self.window_size)]
        return masks


@dataclasses.dataclass(frozen=True, eq=False)
class BooleanMaskPlan(LayerPlan):
    """The plan of `BooleanMaskLayer`.

    :param axes: the axes that the mask is over
    :param mask_axes: the same axes in the mask
    """

    axes: Sequence[int]
    mask_axes: Sequence[int]


@register_layer("boolean_mask")
class BooleanMaskLayer(Planned[BooleanMaskPlan]):
    """The entries where the mask is True, packed into one new axis in front, instead of the axes of the mask.

    Lengths: the new axis has one length for all sequences: the number of True entries, padded frames included.

    Example::

        from returnn_tf.tensor import SpatialDim, batch_dim
        time, m = SpatialDim("time"), SpatialDim("m")
        extern_data = {"data": {"dim_tags": [batch_dim, time], "dtype": "float32", "feature_dim_axis": None}}
        network = {
            "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "data"},
            "output": {"class": "boolean_mask", "mask": "mask", "dims": [batch_dim, time], "out_dim": m,
                "from": "data"}}
    """

    mask: LayerRef = option(help="layer with bools", refs=True)
    dims: Axes = option(help="all dims of the mask, in the order in which the entries are packed")
    out_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> BooleanMaskPlan:
        """Infer the output: the new axis, and the axes that the mask lacks."""
        data = ctx.single_source()
        mask = self.mask.output
        if mask.dtype != "bool":
            raise ctx.error("the mask %r must be bool, but it is %s. Use a compare layer." % (self.mask.path, mask))
        dims = [self.dims] if isinstance(self.dims, (int, Dim)) else self.dims
        axes = ctx.each_axis(data, dims)
        mask_axes = ctx.each_axis(mask, dims)
        if sorted(mask_axes) != list(range(mask.rank)) or not axes:
            raise ctx.error(
                "dims [%s] must be all dims of the mask %s. To drop frames of each sequence separately, use e.g. "
                "gather or repeat with repetitions 0 and 1." % (", ".join(map(str, self.dims)), mask)
            )
        dim = ctx.bind(self.out_dim, ctx.new_spatial(None, "masked"))
        rest = data.without_axes(axes)
        is_time = rest.time_axis is None
        return BooleanMaskPlan(with_feature_default(rest.with_axis(0, dim, time=is_time)), axes, mask_axes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one boolean_mask op."""
        data = ctx.node.sources[0].output
        x = transpose(ctx.source(), [*self.plan.axes, *(a for a in range(data.rank) if a not in self.plan.axes)])
        y = tf.boolean_mask(x, transpose(ctx.value(self.mask), self.plan.mask_axes))
        ctx.define_lens(ctx.output.dims[0], tf.shape(y)[0], size=tf.shape(y)[0])
        return y
