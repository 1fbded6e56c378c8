"""`gauss_window_attention`: the frames around a position, weighted by a normal density."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.attention.weighted_sum import queries_axis
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.empty_axes import at_least_one
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.tensor.data import default_time_axis
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class GaussWindowAttentionPlan(LayerPlan):
    """The plan of `GaussWindowAttentionLayer`.

    :param keep: the axes of the base in the output
    """

    keep: Sequence[int]


@register_layer("gauss_window_attention")
class GaussWindowAttentionLayer(ConcatInputLayer, Planned[GaussWindowAttentionPlan]):
    """``y = sum over i of N(i; position, std) * base[i]`` over the window_size frames around ``round(position)``.

    The window begins ``floor(window_size / 2)`` frames before the rounded position. Outside the sequence, the first or
    last frame is repeated, with the density of the frame that it replaces. The weights don't sum to 1. With inner_size
    there are that many positions, inner_size_step apart, around the given one, as a further axis.

    No parameters. Lengths: the time axis of the base is removed, those of the source are unchanged.

    Example::

        network = {
            "position": {"class": "eval", "from": "energy", "eval": "2. * source(0)"},
            "energy": {"class": "reduce", "mode": "mean", "axis": "T", "from": "score"},
            "score": {"class": "linear", "activation": "sigmoid", "n_out": 1, "from": "data"},
            "output": {"class": "gauss_window_attention", "base": "data", "window_size": 3, "from": "position"}}
    """

    has_inner_weights = True
    base: LayerRef = option(help="layer with the frames to sum", refs=True)
    window_size: int = option(help="number of frames in the window")
    std: float = option(1.0, help="standard deviation of the density, in frames")
    inner_size: Optional[int] = option(None, help="number of positions around the given one")
    inner_size_step: float = option(0.5, help="distance of these positions, in frames")

    def template(self, ctx: PlanContext) -> GaussWindowAttentionPlan:
        """Infer the output: the axes of the source but its feature axis, [inner_size], and the features of the base."""
        data, base = self.input_template(ctx), self.base.output
        if base.time_axis is None or base.batch_axis is None:
            raise ctx.error("the base %s must have a batch and a time axis." % base)
        if base.rank != 3 or base.feature_axis is None:
            raise ctx.error("the base must be [batch, time, feature], but it is %s." % base)
        if data.batch_axis is None:
            raise ctx.error("the source %s has no batch axis." % data)
        if self.window_size < 1 or self.std <= 0:
            raise ctx.error("window_size must be at least 1 and std positive.")
        keep = [i for i in range(data.rank) if i not in (data.batch_axis, data.feature_axis)]
        if data.feature_axis is not None and data.dims[data.feature_axis].size != 1:
            raise ctx.error("the source must be one position, a feature axis of size 1, but it is %s." % data)
        keep = [data.batch_axis, *keep]
        dims = [data.dims[i] for i in keep]
        if self.inner_size is not None:
            dims.append(ctx.new_spatial(self.inner_size, "positions"))
        assert base.feature_dim is not None
        dims.append(base.feature_dim)
        time = default_time_axis(dims, exclude=len(dims) - 1)
        return GaussWindowAttentionPlan(Data(tuple(dims), base.dtype, feature_axis=len(dims) - 1, time_axis=time), keep)

    def emit(self, ctx: EmitContext) -> Any:
        """Gather the windows of all positions."""
        base = self.base.output
        frames = transpose(ctx.value(self.base), [base.batch_axis, base.time_axis, base.feature_axis])
        weights, index = self._windows(ctx)
        frames = at_least_one(frames, 1)  # to read with the weight 0
        y = tf.squeeze(tf.matmul(weights[..., None, :], tf.gather(frames, index, batch_dims=1)), axis=-2)
        y.set_shape(ctx.output.static_shape)
        return y

    def weights_template(self) -> Data:
        """Return [batch, ..., time of the base]: what repeats the first or last frame adds to its weight."""
        base, dims = self.base.output, self.node.output.dims[:-1]
        assert base.time_axis is not None
        time_axis = queries_axis(self.input, dims)
        return Data((*dims, base.dims[base.time_axis]), self.node.output.dtype, time_axis=time_axis)

    def emit_weights(self, ctx: EmitContext) -> Any:
        """Emit the density of each frame."""
        base = self.base.output
        assert base.time_axis is not None
        weights, index = self._windows(ctx)
        frames = tf.range(ctx.size(base.dims[base.time_axis]))
        places = tf.equal(index[..., None], frames)
        return tf.reduce_sum(tf.where(places, weights[..., None], tf.zeros([], weights.dtype)), axis=-2)

    def _windows(self, ctx: EmitContext) -> tuple[Any, Any]:
        """Return the densities in the windows of all positions, and the frames there, [batch, ..., window]."""
        x = self._positions(ctx)
        window = tf.range(self.window_size) - self.window_size // 2
        index = tf.cast(tf.round(x), tf.int32)[..., None] + window
        distance = (tf.cast(index, x.dtype) - x[..., None]) / self.std
        weights = tf.exp(-0.5 * tf.square(distance)) / (self.std * math.sqrt(2 * math.pi))
        last = self._last_frames(ctx, x)
        weights = tf.where(last >= 0, weights, tf.zeros_like(weights))
        return weights, tf.clip_by_value(index, 0, tf.maximum(last, 0))

    def _positions(self, ctx: EmitContext) -> Any:
        """Return the positions, float [batch, ...]."""
        data = self.input
        x = self.emit_input(ctx)
        if data.feature_axis is not None:
            x = tf.squeeze(x, axis=data.feature_axis)
            kept = [i for i in range(data.rank) if i != data.feature_axis]
            x = transpose(x, [kept.index(i) for i in self.plan.keep])
        else:
            x = transpose(x, self.plan.keep)
        if self.inner_size is not None:
            middle = (self.inner_size - 1) / 2.0
            x = x[..., None] + tf.constant([(i - middle) * self.inner_size_step for i in range(self.inner_size)])
        return x

    def _last_frames(self, ctx: EmitContext, x: Any) -> Any:
        """Return the index of the last frame of each sequence, -1 if there is none.

        :return: int32 [batch, 1, ..., 1] with one more axis than x, or a scalar
        """
        base = self.base.output
        assert base.time_axis is not None
        last = ctx.lens(base.dims[base.time_axis]) - 1
        return last if last.shape.rank == 0 else tf.reshape(last, [-1] + [1] * x.shape.rank)
