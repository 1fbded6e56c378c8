"""Scores of segments of different lengths, and axes for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Number
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.signal.features_last import FeaturesLastLayer
from returnn_tf.ops.frames.shape import expand_at, merge_axes, transpose
from returnn_tf.tensor import Data, DimKind
from returnn_tf.util.lazy_tf import tf


def _need_floats(ctx: PlanContext, data: Data) -> None:
    if data.sparse or not data.dtype.startswith(("float", "bfloat")):
        raise ctx.error("needs scores as real numbers, got %s." % data)


@dataclasses.dataclass(frozen=True, eq=False)
class ApplyLengthDistributionPlan(LayerPlan):
    """The plan of `ApplyLengthDistributionLayer`.

    :param orders: of the axes of each source: [batch, others, features]
    """

    orders: Sequence[list[Any]]


@register_layer("apply_length_distribution")
class ApplyLengthDistributionLayer(Planned[ApplyLengthDistributionPlan]):
    """``y[s, t, c] = x[s, t, c] * p[s, 0, t] ** scale``: scores of classes times the probability of the length t + 1.

    The sources are x, [batch, time, features], and p with the lengths as features, [batch, 1, lengths], such as a model
    trained on `classes_to_length_distribution` gives.

    No parameters. Lengths: those of the first source.

    Example::

        network = {
            "segments": {"class": "segment_input", "window": 3, "from": "data"},
            "scores": {"class": "softmax", "n_out": 2, "from": "segments"},
            "last": {"class": "reduce", "mode": "mean", "axis": "T", "from": "segments"},
            "frame": {"class": "expand_dims", "axis": "T", "from": "last"},
            "lengths": {"class": "softmax", "n_out": 3, "from": "frame"},
            "output": {
                "class": "apply_length_distribution", "length_model_scale": 0.5, "from": ["scores", "lengths"]}}
    """

    length_model_scale: Number = option(1.0, help="exponent of the probabilities of the lengths")

    def template(self, ctx: PlanContext) -> ApplyLengthDistributionPlan:
        """Infer the output: like the first source."""
        if len(self.sources) != 2:
            raise ctx.error(
                "needs two sources, scores and the distribution of the lengths; got %d." % len(self.sources)
            )
        scores, lengths = (node.output for node in self.sources)
        orders: list[list[Any]] = []
        for data in (scores, lengths):
            _need_floats(ctx, data)
            ctx.need_feature(data)
            rest = [a for a in range(data.rank) if a not in (data.batch_axis, data.feature_axis)]
            if data.rank != 3 or data.batch_axis is None:
                raise ctx.error("needs sources with the axes [batch, time, features], got %s." % data)
            orders.append([data.batch_axis, *rest, data.feature_axis])
        if lengths.dims[orders[1][1]].size != 1 or scores.dtype != lengths.dtype:
            raise ctx.error("the second source must be [batch, 1, lengths] of %s, got %s." % (scores.dtype, lengths))
        return ApplyLengthDistributionPlan(scores.permuted(orders[0]).replace(vocab=None), orders)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one product."""
        scores, lengths = (transpose(ctx.source(i), self.plan.orders[i]) for i in (0, 1))
        factors = tf.pow(transpose(lengths, [0, 2, 1]), tf.cast(self.length_model_scale, lengths.dtype))
        return scores * factors[:, : tf.shape(scores)[1]]


@register_layer("normalize_length_scores")
class NormalizeLengthScoresLayer(ConcatInputLayer):
    """``y[t] = x[t] ** (t + 1)``, computed as ``exp((t + 1) * log(x[t]))``.

    No parameters. Lengths: unchanged.

    Example::

        network = {
            "p": {"class": "softmax", "n_out": 3, "from": "data"},
            "output": {"class": "normalize_length_scores", "from": "p"}}
    """

    keeps_features = True

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: like the source."""
        data = self.input_template(ctx)
        _need_floats(ctx, data)
        if data.time_axis is None:
            raise ctx.error("the source %s has no time axis." % data)
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit logarithm, product, exponential."""
        x, axis = self.emit_input(ctx), self.input.time_axis
        assert axis is not None
        lengths = tf.cast(tf.range(tf.shape(x)[axis]) + 1, x.dtype)
        return tf.exp(tf.math.log(x) * expand_at(lengths, [a for a in range(self.input.rank) if a != axis]))


@register_layer("fill_unused")
class FillUnusedLayer(ConcatInputLayer):
    """The source with ``fill_value`` in all frames after the end of a sequence.

    No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "fill_unused", "fill_value": 1.0, "from": "data"}}
    """

    keeps_features = True
    fill_value: Number = option(0.0, help="value of the padded frames")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: like the source."""
        data = self.input_template(ctx)
        if data.dtype in ("bool", "string"):
            raise ctx.error("needs numbers, got %s." % data)
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one where op."""
        x = self.emit_input(ctx)
        mask = ctx.masks(self.input, self.input.dynamic_axes)
        return x if mask is None else tf.where(mask, x, tf.cast(self.fill_value, x.dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class SwapTimeFeaturePlan(LayerPlan):
    """The plan of `SwapTimeFeatureLayer`.

    :param swap: order of the axes of the input in the output
    """

    swap: Sequence[int]


@register_layer("swap_time_feature")
class SwapTimeFeatureLayer(FeaturesLastLayer, Planned[SwapTimeFeaturePlan]):
    """Exchanges frames and features: [B, T, F] becomes [B, F, T], whose time axis has the features.

    No parameters. Lengths: the features are as many as the frames.

    Example::

        network = {"output": {"class": "swap_time_feature", "from": "data"}}
    """

    def template(self, ctx: PlanContext) -> SwapTimeFeaturePlan:
        """Infer the output: both dims at each other's place."""
        data = self.input_template(ctx)
        ctx.need_feature(data)
        if data.time_axis is None or data.feature_axis is None:
            raise ctx.error("the source %s has no time axis." % data)
        swap = list(range(data.rank))
        swap[data.time_axis], swap[data.feature_axis] = data.feature_axis, data.time_axis
        dims = tuple(data.dims[a] for a in swap)
        return SwapTimeFeaturePlan(data.replace(dims=dims, vocab=None), swap)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one transpose."""
        return transpose(self.emit_input(ctx), self.plan.swap)


@register_layer("flatten_time")
class FlattenTimeLayer(FeaturesLastLayer):
    """All frames in the features of a single one: ``y[b, 0, t * n + f] = x[b, t, f]``; [B, T, F] becomes [B, 1, T * F].

    No parameters. Lengths: one frame; its features are as many as the frames times their features.

    Example::

        network = {"output": {"class": "flatten_time", "from": "data"}}
    """

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: one frame with all features."""
        data = self.features_last(ctx)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        if data.rank != 3 or data.time_axis != 1:
            raise ctx.error("needs a source with the axes [batch, time, features], got %s." % data)
        merged = (data.dims[1] * size).as_kind(DimKind.FEATURE)
        return data.with_dim(1, ctx.new_spatial(1, "flat")).with_dim(2, ctx.bind(self.out_dim, merged))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one reshape."""
        return merge_axes(self.emit_features_last(ctx), 1, 2)[0][:, None]
