"""`repeat`: repetition of frames; `tile`, `tile_features`: repetition of whole axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.repeat import repeat_frames
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatPlan(LayerPlan):
    """The plan of `RepeatLayer`.

    :param perm: order of the axes of the input in the output
    :param axis: the repeated one, in the output
    :param counts: the layout of the repetitions, [batch, time], if a layer gives them
    """

    perm: Sequence[int]
    axis: int
    counts: Optional[Data]


@register_layer("repeat")
class RepeatLayer(ConcatInputLayer, Planned[RepeatPlan]):
    """Repeats every frame, all equally often or each as often as a layer gives (zero included).

    Lengths: times ``repetitions``; with a layer, the sum of its values over the valid frames.

    Example::

        network = {"output": {"class": "repeat", "repetitions": 2, "axis": "T", "from": "data"}}
    """

    repetitions: Union[int, str] = option(help="how often: an int, or a layer [batch, time] or [batch]", refs=True)
    axis: AxisOption = option("T", help="the frame axis")
    out_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> RepeatPlan:
        """Infer the output: the axis longer, after the batch axis, which is in front."""
        data = self.input_template(ctx)
        front = [*([] if data.batch_axis is None else [data.batch_axis]), ctx.axis(data, self.axis)]
        perm = [*dict.fromkeys(front), *(a for a in range(data.rank) if a not in front)]
        data = data.permuted(perm)
        axis = perm.index(front[-1])
        dim = data.dims[axis]
        if dim.is_batch:
            raise ctx.error("the batch axis can't be repeated. Use expand_dims with dim, and merge_dims.")
        if not isinstance(self.repetitions, Node):
            if self.repetitions < 0:  # type: ignore[operator]
                raise ctx.error("repetitions must not be negative, got %s." % self.repetitions)
            out = data.with_dim(axis, ctx.bind(self.out_dim, dim * self.repetitions))  # type: ignore[operator]
            return RepeatPlan(out, perm, axis, None)
        counts = self._counts(ctx, data, dim)
        new = ctx.bind(self.out_dim, ctx.new_spatial(None, "repeated:%s"))
        is_time = data.time_axis == axis or (data.time_axis is None and data.feature_axis != axis)
        out = data.with_dim(axis, new).replace(time_axis=axis if is_time else data.time_axis)
        return RepeatPlan(out, perm, axis, counts)

    def _counts(self, ctx: PlanContext, data: Data, dim: Dim) -> Data:
        """Return the layout [batch, time] of the repetitions."""
        given = self.repetitions.output  # type: ignore[union-attr]
        batch = data.dims[0] if data.batch_axis is not None else None
        layout = Data((dim,) if batch is None else (batch, dim), given.dtype)
        foreign = [d for d, target in zip(given.dims, match_axes(given, layout)) if target is None and d.size != 1]
        if foreign or not is_int(given.dtype):
            raise ctx.error(
                "repetitions must be integers per sequence or per frame of %s, but layer %r is %s. If its frames are "
                "the same, declare it by a reinterpret_data layer (option size_base)."
                % (data, self.repetitions.path, given)  # type: ignore[union-attr]
            )
        return layout

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather."""
        x = transpose(self.emit_input(ctx), self.plan.perm)
        axis, layout = self.plan.axis, self.plan.counts
        if not isinstance(self.repetitions, Node) or layout is None:
            return tf.repeat(x, self.repetitions, axis=axis)
        has_batch = layout.rank == 2
        counts = tf.cast(ctx.broadcast(self.repetitions, layout), tf.int32)
        dim = layout.dims[-1]
        if dim.is_dynamic():
            counts = tf.where(ctx.mask(layout, layout.rank - 1), counts, 0)
        counts = tf.broadcast_to(counts, tf.shape(x)[: layout.rank])
        if not has_batch:
            x, counts = x[tf.newaxis], counts[tf.newaxis]
        y, lens = repeat_frames(x, counts)
        ctx.define_lens(ctx.output.dims[axis], lens if has_batch else lens[0], size=tf.shape(y)[1])
        return y if has_batch else y[0]


@dataclasses.dataclass(frozen=True, eq=False)
class TilePlan(LayerPlan):
    """The plan of `TileLayer`.

    :param counts: how often each axis is repeated
    """

    counts: Sequence[int]


@register_layer("tile")
class TileLayer(ConcatInputLayer, Planned[TilePlan]):
    """Repeats static axes as a whole: ``a b`` becomes ``a b a b``.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "tile", "multiples": {"F": 3}, "from": "data"}}
    """

    multiples: dict[Any, int] = option(help="{axis: number of repetitions}")
    out_dims: Optional[dict[Any, Dim]] = option(None, help="{axis: the new dim}")

    def template(self, ctx: PlanContext) -> TilePlan:
        """Infer the output: the axes larger."""
        data = out = self.input_template(ctx)
        declared = {ctx.axis(data, axis): dim for axis, dim in (self.out_dims or {}).items()}
        counts: list[int] = [1] * data.rank
        for desc, count in self.multiples.items():
            axis = ctx.axis(data, desc)
            if data.dims[axis].size is None:
                raise ctx.error(
                    "only static axes can be tiled, but %s is dynamic: its padding would end up between the frames. "
                    "Use repeat." % data.dims[axis]
                )
            counts[axis] = count
            out = out.with_dim(axis, ctx.bind(declared.get(axis), data.dims[axis] * count))
        return TilePlan(out, counts)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one tile op."""
        return tf.tile(self.emit_input(ctx), self.plan.counts)


@register_layer("tile_features")
class TileFeaturesLayer(ConcatInputLayer):
    """Repeats the feature axis as a whole, ``repetitions`` times.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "tile_features", "repetitions": 2, "from": "data"}}
    """

    repetitions: int = option(1, help="number of repetitions")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the feature axis larger."""
        data = self.input_template(ctx)
        dim = ctx.need_feature(data)
        ctx.need_static(dim, "the feature axis")
        assert data.feature_axis is not None
        return data.with_dim(data.feature_axis, dim * self.repetitions)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one tile op."""
        counts = [self.repetitions if a == self.input.feature_axis else 1 for a in range(self.input.rank)]
        return tf.tile(self.emit_input(ctx), counts)
