"""`dot_attention`, `concat_attention`: energies from a query and the context of each frame, softmax, weighted sum."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.attention.weighted_sum import WeightedSum, plan_weighted_sum, queries_axis
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ContextAttentionPlan(LayerPlan):
    """The plan of `ContextAttentionLayer`.

    :param size: number of features of the source and of ``base_ctx``
    :param query: the layout of the source, with a dim for the features that both have
    :param context: the layout of ``base_ctx`` with this dim
    :param energy: the layout of the energies; the frames are the last axis
    :param sum: how the base is summed by the weights
    """

    size: int
    query: Data
    context: Data
    energy: Data
    sum: WeightedSum


@dataclasses.dataclass(eq=False, repr=False)
class ContextAttentionLayer(ConcatInputLayer, Planned[ContextAttentionPlan]):
    """Options and axes that `dot_attention` and `concat_attention` share."""

    has_inner_weights = True
    base: LayerRef = option(help="layer with the frames to sum", refs=True)
    base_ctx: LayerRef = option(help="layer with the context of each frame, of the source's feature size", refs=True)

    def template(self, ctx: PlanContext) -> ContextAttentionPlan:
        """Infer the output: the axes of the source, with the features of the base."""
        data, context = self.input_template(ctx), self.base_ctx.output
        size = self._check_features(ctx, data, context)
        if context.time_axis is None:
            raise ctx.error("base_ctx %s has no time axis." % context)
        query, keys = _matching(data), _matching(context)
        rest = [d for d in query.dims if d is not query.feature_dim]
        rest += [d for d in keys.dims if d.is_batch and not any(r.is_batch for r in rest)]
        time = context.dims[context.time_axis]
        feature = keys.feature_dim
        others = [d for i, d in enumerate(keys.dims) if not self._known(d, i, rest, time, feature)]
        energy = Data.from_dims((*rest, *others, time), dtype=ctx.float_dtype, feature_axis=None)
        weighted = plan_weighted_sum(ctx, energy, self.base.output, squeeze=False)
        return ContextAttentionPlan(weighted.output, size=size, query=query, context=keys, energy=energy, sum=weighted)

    def _known(self, dim: Dim, axis: int, rest: list[Dim], time: Dim, feature: Optional[Dim]) -> bool:
        return dim.is_batch or dim is time or dim is feature or any(dim is r for r in rest)

    def _check_features(self, ctx: PlanContext, data: Data, context: Data) -> int:
        sizes = [ctx.need_static(ctx.need_feature(d, w), w) for d, w in ((data, "the source"), (context, "base_ctx"))]
        if sizes[0] != sizes[1]:
            raise ctx.error(
                "the source has %d features, base_ctx %d, but they must be equal. Put a linear layer in front of one."
                % (sizes[0], sizes[1])
            )
        return sizes[0]

    def emit(self, ctx: EmitContext) -> Any:
        """Emit energies, softmax over the valid frames, weighted sum."""
        return self.plan.sum.emit(ctx, self.emit_weights(ctx), ctx.value(self.base))

    def weights_template(self) -> Data:
        """Return [batch, axes of the source, heads, time of the base]."""
        return self.plan.energy.replace(time_axis=queries_axis(self.plan.query, self.plan.energy.dims))

    def emit_weights(self, ctx: EmitContext) -> Any:
        """Emit energies and softmax over the valid frames."""
        pairs = self.plan.energy.with_axis(self.plan.energy.rank, _FEATURES, feature=True)
        query = to_layout(self.emit_input(ctx), self.plan.query, pairs)
        context = to_layout(ctx.value(self.base_ctx), self.plan.context, pairs)
        energy = self.energy(ctx, query, context)
        return masked_softmax(energy, ctx.masks(self.plan.energy, [self.plan.energy.rank - 1]))

    def energy(self, ctx: EmitContext, query: Any, context: Any) -> Any:
        """Compute energies [..., time] of query [..., 1, features] and context [..., time, features]."""
        raise AssertionError("%s has no energy()" % type(self).__name__)


#: Stands for the features of source and context, which have different dims of the same size.
_FEATURES = Dim(description="attention features")


def _matching(data: Data) -> Data:
    assert data.feature_axis is not None
    return data.with_dim(data.feature_axis, _FEATURES)


@register_layer("dot_attention")
class DotAttentionLayer(ContextAttentionLayer):
    """``y = sum over t of softmax over t(energy_factor * base_ctx[t] . source) * base[t]``.

    Frames after the end of a sequence don't count. No parameters. Luong et al. 2015.
    Lengths: the time axis of the base is removed, those of the source are unchanged.

    Example::

        network = {
            "query": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
            "output": {"class": "dot_attention", "base": "data", "base_ctx": "data", "from": "query"}}
    """

    takes_ints = False
    energy_factor: Optional[float] = option(None, help="factor of the energies, e.g. 1 / sqrt(features)")

    def energy(self, ctx: EmitContext, query: Any, context: Any) -> Any:
        """Compute scalar products."""
        energy = tf.squeeze(tf.matmul(context, query, transpose_b=True), axis=-1)
        return energy if self.energy_factor is None else energy * self.energy_factor


@register_layer("concat_attention")
class ConcatAttentionLayer(ContextAttentionLayer):
    """``y = sum over t of softmax over t(v . tanh(base_ctx[t] + source)) * base[t]``.

    Frames after the end of a sequence don't count. Parameter: ``v`` [features of base_ctx]. Bahdanau et al. 2015.
    Lengths: the time axis of the base is removed, those of the source are unchanged.

    Example::

        network = {
            "query": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
            "output": {"class": "concat_attention", "base": "data", "base_ctx": "data", "from": "query"}}
    """

    takes_ints = False
    forward_weights_init: Init = option("glorot_uniform", help="initialiser of v")

    def template(self, ctx: PlanContext) -> ContextAttentionPlan:
        """Infer the output: the axes of the source, with the features of the base."""
        found = super().template(ctx)
        ctx.param("v", (found.size,), self.forward_weights_init)
        return found

    def energy(self, ctx: EmitContext, query: Any, context: Any) -> Any:
        """Apply a small network to each frame and the query."""
        return tf.tensordot(tf.tanh(context + query), ctx.param("v"), [[-1], [0]])
