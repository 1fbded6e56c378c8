"""Channels as separate sequences, and groups of sequences as one: the batch axis is multiplied or divided."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.signal.features_last import FeaturesLastLayer
from returnn_tf.ops.frames.shape import expand_at, merge_axes, moved_axis_perm, split_axis, transpose
from returnn_tf.ops.signal.median import median_of_groups
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


class OtherBatchDim(Dim):
    """A dynamic dim whose lengths belong to another batch than those of the dim it is made of."""

    __slots__ = ("of",)

    def __init__(self, of: Dim, description: str) -> None:
        super().__init__(DimKind.SPATIAL if of.is_loop else of.kind, None, description)
        self.of = of


_other_batch: WeakValueDictionary[tuple[int, str, int], OtherBatchDim] = WeakValueDictionary()


def in_other_batch(dim: Dim, how: str, count: int) -> OtherBatchDim:
    """Return the dim in a batch that is changed in this way, always the same object, so that such layers agree."""
    key = (id(dim), how, count)
    found = _other_batch.get(key)
    if found is None:
        found = _other_batch[key] = OtherBatchDim(dim, "%s(%s)" % (how, dim))
    return found


def _with_batch(data: Data, batch: Dim, how: str, count: int) -> Data:
    """Return the template with another batch, and with its own dims for what has lengths; the batch axis is first."""
    dims = tuple(in_other_batch(d, how, count) if d.is_dynamic() else d for d in data.dims[1:])
    return data.replace(dims=(batch, *dims), beam=None)


def _define_lens(ctx: EmitContext, data: Data, lens_of: Any) -> None:
    """Define the lengths of the dims of `_with_batch`."""
    for dim in data.dims:
        if isinstance(dim, OtherBatchDim):
            lens = ctx.lens(dim.of)
            ctx.define_lens(dim, lens_of(lens) if lens.shape.rank else lens, size=ctx.size(dim.of))


@register_layer("split_concatenated_multichannel")
class SplitConcatenatedMultichannelLayer(FeaturesLastLayer):
    """Makes each channel a separate sequence: [batch, ..., channels * n] becomes [batch * channels, ..., n].

    Channel c of sequence b is at ``b * nr_of_channels + c`` in the batch axis.

    No parameters. Lengths: those of the sequence, for each of its channels.

    Example::

        network = {"output": {"class": "split_concatenated_multichannel", "nr_of_channels": 2, "from": "data"}}
    """

    nr_of_channels: int = option(1, check=at_least(1), help="number of channels in the features")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a larger batch, fewer features."""
        data = self.features_last(ctx)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        if size % self.nr_of_channels:
            raise ctx.error("%d features are not divisible by %d channels." % (size, self.nr_of_channels))
        if self.nr_of_channels == 1:
            return self.with_features(ctx, data, size)
        if data.batch_axis is None:
            raise ctx.error("needs a batch axis, but the source is %s." % data)
        batch = data.dims[0] * self.nr_of_channels
        data = self.with_features(ctx, data, size // self.nr_of_channels)
        return _with_batch(data, batch, "channel", self.nr_of_channels)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a transpose and two reshapes."""
        x, count = self.emit_features_last(ctx), self.nr_of_channels
        if count == 1:
            return x
        rank = x.shape.rank
        x = split_axis(x, rank - 1, [count, ctx.output.dim])
        y, batch = merge_axes(transpose(x, moved_axis_perm(rank + 1, rank - 1, 1)), 0, 2)
        ctx.define_size(ctx.output.dims[0], batch)
        _define_lens(ctx, ctx.output, lambda lens: tf.repeat(lens, count))
        return y


@register_layer("batch_median_pooling")
class BatchMedianPoolingLayer(FeaturesLastLayer):
    """The median of every entry over groups of ``pool_size`` sequences in succession.

    Of an even number it is the larger of both middle values. Frames after the end of a sequence don't count. A last
    group with fewer sequences has the median of these. The output is [groups, others, features].

    No parameters. Lengths: those of the first sequence of each group.

    Example::

        network = {"output": {"class": "batch_median_pooling", "pool_size": 2, "from": "data"}}
    """

    pool_size: int = option(1, check=at_least(1), help="number of sequences in a group")

    def mixes_sequences(self) -> bool:
        """Return whether a group has more than one sequence."""
        return self.pool_size > 1

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a smaller batch."""
        data = self.features_last(ctx)
        if data.dtype not in ("float32", "float64"):
            raise ctx.error("the source must be float32 or float64, but it is %s." % data)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        data = self.with_features(ctx, data, size)
        if self.pool_size == 1:
            return data
        if data.batch_axis is None:
            raise ctx.error("needs a batch axis, but the source is %s." % data)
        return _with_batch(data, data.dims[0].ceildiv_right(self.pool_size), "group", self.pool_size)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one sort."""
        x, count = self.emit_features_last(ctx), self.pool_size
        if count == 1:
            return x
        data = self.input.permuted(self.order())
        mask = ctx.masks(data, data.dynamic_axes)
        mask = expand_at(tf.ones([1], "bool"), range(1, data.rank)) if mask is None else mask
        y = median_of_groups(x, tf.broadcast_to(mask, tf.shape(x)), count)
        ctx.define_size(ctx.output.dims[0], tf.shape(y)[0])
        _define_lens(ctx, ctx.output, lambda lens: lens[::count])
        return y
