"""`gather`, `gather_nd`: entries of an axis at positions given by another layer."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.shared.axis_marks import index_of, with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.empty_axes import without_empty_axes
from returnn_tf.ops.frames.gather import clip_to_valid
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


class GatherAxes:
    """The correspondence of axes of input and positions.

    The output has the common axes (in the order of the input), the input's axes in front of the gathered one, the
    position's own axes, and the rest of the input's axes.

    :param data: the input
    :param position: template of the positions
    :param axis: the gathered axis of the input
    :param only_batch: whether only the batch axes are common, and the axes of the steps of a loop
    :param match_ones: whether an axis of size 1 also matches an axis of another size and the same kind
    """

    def __init__(
        self, data: Data, position: Data, axis: int, *, only_batch: bool = False, match_ones: bool = False
    ) -> None:
        self.data, self.position, self.axis = data, position, axis
        others = [a for a in range(data.rank) if a != axis]
        targets = match_axes(position, data.without_axes([axis]))
        partner = {others[t]: a for a, t in enumerate(targets) if t is not None and self._same(position, a, others[t])}
        if only_batch:
            partner = {a: p for a, p in partner.items() if data.dims[a].is_batch or data.dims[a].is_loop}
        elif match_ones:
            _match_ones(data, position, others, partner)
        self.common = [a for a in others if a in partner]
        self.common_position = [partner[a] for a in self.common]
        self.own = [a for a in range(position.rank) if a not in self.common_position]
        self.before = [a for a in others if a < axis and a not in partner]
        self.after = [a for a in others if a > axis and a not in partner]

    def _same(self, position: Data, position_axis: int, axis: int) -> bool:
        a, b = position.dims[position_axis], self.data.dims[axis]
        return a is b or a.is_batch or (a.agrees_with(b) and not a.agrees_with(self.data.dims[self.axis]))

    @property
    def rank_before(self) -> int:
        """Return the index of the gathered axis after `arrange_input`."""
        return len(self.common) + len(self.before)

    def output(self, like: Data) -> Data:
        """Return the template of the gathered values."""
        data, position = self.data, self.position
        front: list[int] = self.common + self.before
        kept = front + [-1] * len(self.own) + self.after
        dims = [self._common_dim(a) if a in self.common else data.dims[a] for a in front]
        dims += [position.dims[a] for a in self.own] + [data.dims[a] for a in self.after]
        feature, time = index_of(data.feature_axis, kept), index_of(data.time_axis, kept)
        if feature is None and position.feature_axis in self.own and like.sparse_dim is None:
            feature = len(front) + self.own.index(position.feature_axis)
        if time is None and position.time_axis in self.own:
            time = len(front) + self.own.index(position.time_axis)
        return like.replace(dims=tuple(dims), feature_axis=feature, time_axis=time)

    def _common_dim(self, axis: int) -> Dim:
        dim, other = self.data.dims[axis], self.position.dims[self.common_position[self.common.index(axis)]]
        return other if dim.size == 1 else dim

    @property
    def arranged_position(self) -> Data:
        """Return the template of `arrange_position`."""
        dims = [self._common_dim(a) for a in self.common] + [self.position.dims[a] for a in self.own]
        return Data(tuple(dims), self.position.dtype)

    def arrange_input(self, ctx: EmitContext, x: Any) -> Any:
        """Arrange the input as [common, before, axis, after]."""
        x = transpose(x, self.common + self.before + [self.axis] + self.after)
        return _repeat_ones(ctx, x, self.data, self.common, self.position, self.common_position)

    def arrange_position(self, ctx: EmitContext, position: Any) -> Any:
        """Arrange the positions as [common, own]."""
        position = transpose(position, self.common_position + self.own)
        return _repeat_ones(ctx, position, self.position, self.common_position, self.data, self.common)

    def limits(self, ctx: EmitContext, dim: Dim) -> Any:
        """Return the lengths of a dim, broadcastable against arranged positions."""
        lens = tf.convert_to_tensor(ctx.lens(dim))
        if lens.shape.rank == 0:
            return lens
        batch = [i for i, a in enumerate(self.common) if self.data.dims[a].is_batch]
        assert batch, "lengths by sequence need a batch axis in the positions"
        rank = len(self.common) + len(self.own)
        return tf.reshape(lens, [-1 if i == batch[0] else 1 for i in range(rank)])


def _repeat_ones(ctx: EmitContext, x: Any, data: Data, axes: list[int], other: Data, other_axes: list[int]) -> Any:
    """Expand those of the common axes, the first of ``x``, that have size 1 to the size of the other side."""
    shape: list[Any] = [tf.shape(x)[i] for i in range(x.shape.rank)]
    changed = False
    for i, (a, b) in enumerate(zip(axes, other_axes)):
        if data.dims[a].size == 1 and other.dims[b].size != 1:
            shape[i] = ctx.size(other.dims[b])
            changed = True
    return tf.broadcast_to(x, tf.stack(shape)) if changed else x


def with_batch(position: Data, data: Data) -> Data:
    """Add a batch axis in front of the positions if they lack one and the input has one."""
    if position.batch_axis is not None or data.batch_axis is None:
        return position
    return position.with_axis(0, data.dims[data.batch_axis])


def emit_position(ctx: EmitContext, node: Node, position: Data) -> Any:
    """Emit int32 positions in the layout of `with_batch`."""
    x = tf.cast(ctx.value(node), tf.int32) if node.output.dtype != "int64" else ctx.value(node)
    if position.rank == node.output.rank:
        return x
    batch = ctx.size(position.dims[0])
    return tf.broadcast_to(x[tf.newaxis], tf.concat([[batch], tf.shape(x)], axis=0))


def _match_ones(data: Data, position: Data, axes: list[int], partner: Any) -> None:
    for p, dim in enumerate(position.dims):
        if p in partner.values():
            continue
        for a in axes:
            fits = data.dims[a].kind is dim.kind and 1 in (dim.size, data.dims[a].size)
            if a not in partner and fits:
                partner[a] = p
                break


@dataclasses.dataclass(frozen=True, eq=False)
class GatherPlan(LayerPlan):
    """The plan of `GatherLayer`.

    :param gather: which axes of the input and of the positions belong together
    """

    gather: GatherAxes


@register_layer("gather")
class GatherLayer(ConcatInputLayer, Planned[GatherPlan]):
    """``y[..., p, ...] = x[..., position[p], ...]``: entries of one axis by their indices, e.g. one frame per sequence.

    Axes that the positions share with the source (except the gathered one) are matched; the others replace the gathered
    axis. Output axes: shared ones, axes in front of the gathered one, axes of the positions, the rest.
    Where the feature axis is gathered, that of the positions takes its place, unless it is one of `extern_data`; where
    that of the source is one of `extern_data`, the output has the one that is the default for its dims.
    Lengths: those of the axes of the positions.

    Example::

        network = {
            "len": {"class": "length", "from": "data"},
            "last": {"class": "eval", "eval": "source(0) - 1", "from": "len"},
            "output": {"class": "gather", "axis": "T", "position": "last", "from": "data"}}
    """

    position: Union[int, str] = option(help="int, or layer with integers: the indices", refs=True)
    axis: AxisOption = option(help="the axis to gather from")
    clip_to_valid: bool = option(False, help="clip positions to the sequence: [0, length - 1]")

    def template(self, ctx: PlanContext) -> GatherPlan:
        """Infer the output; see the class."""
        data = self.input_template(ctx)
        axis = ctx.axis(data, self.axis)
        dim = data.dims[axis]
        position = Data((), "int32")
        if isinstance(self.position, Node):
            position = need_indices(ctx, self.position)
        elif _is_outside(self.position, dim) and not self.clip_to_valid:
            raise ctx.error("position %s is not in the axis %s, whose first entry is 0." % (self.position, dim))
        if self.clip_to_valid and dim.is_dynamic():
            position = with_batch(position, data)
        gather = GatherAxes(data, position, axis, match_ones=ctx.behavior_version < 11)
        out = gather.output(data).with_time_axis_default()
        if data.feature_axis == axis and isinstance(self.position, Node) and _is_default(self.position):
            return GatherPlan(out.replace(feature_axis=None), gather)
        if data.feature_axis is not None and len(self.sources) == 1 and _is_default(self.sources[0]):
            out = out.replace(feature_axis=None)
        return GatherPlan(with_feature_default(out), gather)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather op."""
        gather = self.plan.gather
        x = gather.arrange_input(ctx, self.emit_input(ctx))
        position = self._positions(ctx)
        if self.clip_to_valid:
            dim = gather.data.dims[gather.axis]
            position = clip_to_valid(position, tf.cast(gather.limits(ctx, dim), position.dtype))

        def run(x: Any) -> Any:
            return tf.gather(x, position, axis=gather.rank_before, batch_dims=len(gather.common))

        # Its gradient fails if an axis in front of the gathered one is empty.
        return run(x) if gather.common or not gather.before else without_empty_axes(x, [None] * (x.shape.rank - 2), run)

    def _positions(self, ctx: EmitContext) -> Any:
        gather = self.plan.gather
        if isinstance(self.position, Node):
            position = emit_position(ctx, self.position, gather.position)
            return gather.arrange_position(ctx, safe_padding(ctx, self.position.output, gather, position))
        position = tf.constant(self.position)
        return tf.fill([ctx.size(d) for d in gather.position.dims], position) if gather.position.rank else position


@dataclasses.dataclass(frozen=True, eq=False)
class GatherNdPlan(LayerPlan):
    """The plan of `GatherNdLayer`.

    :param gather: which axes of the input and of the positions belong together
    """

    gather: GatherAxes


@register_layer("gather_nd")
class GatherNdLayer(ConcatInputLayer, Planned[GatherNdPlan]):
    """`gather` from the first axis other than batch; only the batch axis is shared with the positions.

    [batch, n, ...] and positions [batch, ...] give [batch, axes of the positions, rest].
    Lengths: those of the axes of the positions.

    Example::

        network = {
            "r": {"class": "range_in_axis", "axis": "T", "from": "data:classes"},
            "zero": {"class": "eval", "eval": "source(0) * 0", "from": "r"},
            "output": {"class": "gather_nd", "position": "zero", "from": "data"}}
    """

    position: str = option(help="layer with integers: the indices", refs=True)

    def template(self, ctx: PlanContext) -> GatherNdPlan:
        """Infer the output; see the class."""
        data = self.input_template(ctx)
        axis = next((a for a, d in enumerate(data.dims) if not (d.is_batch or d.is_loop)), None)
        if axis is None or not isinstance(self.position, Node):
            raise ctx.error("the source %s has no axis to take from." % data)
        position = with_batch(need_indices(ctx, self.position), data)
        gather = GatherAxes(data, position, axis, only_batch=True)
        return GatherNdPlan(with_feature_default(gather.output(data).with_time_axis_default()), gather)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather op."""
        gather = self.plan.gather
        x = gather.arrange_input(ctx, self.emit_input(ctx))
        assert isinstance(self.position, Node)
        position = emit_position(ctx, self.position, gather.position)
        position = gather.arrange_position(ctx, safe_padding(ctx, self.position.output, gather, position))
        return tf.gather(x, position, axis=gather.rank_before, batch_dims=len(gather.common))


def _is_default(node: Node) -> bool:
    """Return whether the feature axis is that of `extern_data`, which is only one by default."""
    dim = node.output.feature_dim
    while dim is not None and node.sources and dim in node.sources[0].output.dims:
        node = node.sources[0]
    return dim is not None and node.extern_key is not None


def _is_outside(position: Any, dim: Dim) -> bool:
    return bool(position < 0 or (dim.size is not None and position >= dim.size))


def need_indices(ctx: PlanContext, node: Node) -> Data:
    """Return the template of a layer with indices.

    :raises ConfigError: if these are no integers
    """
    if not (node.output.unknown or is_int(node.output.dtype)):
        raise ctx.error("position must hold integers, but layer %r is %s. Use a cast layer." % (node.path, node.output))
    return node.output


def safe_padding(ctx: EmitContext, data: Data, gather: GatherAxes, position: Any) -> Any:
    """Clip positions that don't matter into the axis, while wrong valid ones remain an error.

    Those are in padded frames, and in a step of a loop those of ended sequences, e.g. after the last frame of the
    encoder in a transducer search.

    :param data: template of the positions as output by their layer
    """
    padded = [a for a in data.dynamic_axes if data.batch_axis is not None or ctx.lens(data.dims[a]).shape.rank == 0]
    mask = ctx.masks(data, padded)
    if ctx.ended is not None and data.batch_axis is not None:
        running = tf.reshape(~ctx.ended, [-1 if a == data.batch_axis else 1 for a in range(data.rank)])
        mask = running if mask is None else tf.logical_and(mask, running)
    if mask is None:
        return position
    if position.shape.rank > mask.shape.rank:
        mask = mask[tf.newaxis]
    last = tf.cast(ctx.size(gather.data.dims[gather.axis]), position.dtype) - 1
    return tf.where(mask, position, tf.clip_by_value(position, 0, tf.maximum(last, 0)))
