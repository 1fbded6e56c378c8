"""`generic_attention`: sum over the frames of a base, weighted by another layer."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, NoiseShape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.attention.weighted_sum import WeightedSum, plan_weighted_sum
from returnn_tf.layers.shared.attention_parts import attended
from returnn_tf.loops.aux_values import PER_SEQUENCE
from returnn_tf.loops.over_steps import OVER_STEPS, OverSteps, known_sizes
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Dim

_NO_SOURCES = "the layer has no 'from'; put a dropout layer behind the weights"


#: Of a layer of a loop: the base with its axes in `WeightedSum.product_order`.
ORDERED_BASE: Aux[Any] = Aux("base in the order of products")


@dataclasses.dataclass(frozen=True, eq=False)
class GenericAttentionPlan(LayerPlan):
    """The plan of `GenericAttentionLayer`.

    :param sum: how the base is summed by the weights
    """

    sum: WeightedSum


@register_layer("generic_attention")
class GenericAttentionLayer(Planned[GenericAttentionPlan]):
    """``y = sum over t of weights[t] * base[t]``, t along the time axis of the base.

    Shared axes, e.g. heads, are kept; the output has the batch axis, the axes of the weights only, and those of the
    base. There is no mask: the weights must be 0 after the end of a sequence, like those of `softmax_over_spatial`.

    No parameters. Lengths: the time axis of the base is removed, all others are unchanged. Bahdanau et al. 2015.

    Example::

        network = {
            "energy": {"class": "linear", "activation": None, "n_out": 1, "from": "data"},
            "weights": {"class": "softmax_over_spatial", "from": "energy"},
            "output": {"class": "generic_attention", "weights": "weights", "base": "data"}}
    """

    weights: LayerRef = option(help="layer with a weight per frame of the base", refs=True)
    base: LayerRef = option(help="layer with the frames to sum", refs=True)
    auto_squeeze: bool = option(True, help="drop axes of size 1 that only the weights have")
    dropout: Optional[float] = option(0.0, help="dropout on sources", inert=_NO_SOURCES)
    dropout_axis: Optional[Axes] = option(None, help="axes with own masks", inert=_NO_SOURCES)
    dropout_noise_shape: NoiseShape = option(None, help="axes that share a mask", inert=_NO_SOURCES)
    dropout_on_forward: bool = option(False, help="apply dropout outside training too", inert=_NO_SOURCES)
    in_dim: Optional[Dim] = option(None, help="axis to use as the feature axis", inert=_NO_SOURCES)
    mask: Optional[str] = option(None, choices=(None, "unity"), help="obsolete", inert=_NO_SOURCES)

    needs_sources = False

    def template(self, ctx: PlanContext) -> GenericAttentionPlan:
        """Infer the output without the time axis of the base."""
        if self.sources:
            raise ctx.error("takes no 'from': name the layers by 'weights' and 'base'.")
        weighted = plan_weighted_sum(ctx, self.weights.output, self.base.output, squeeze=self.auto_squeeze)
        return GenericAttentionPlan(weighted.output, weighted)

    def ignores_padding(self) -> bool:
        """Return whether the weights are 0 there."""
        return bool(self.weights.layer.masks_padding())

    def before_loop(self, ctx: EmitContext) -> None:
        """Bring a base from outside the loop into the order of a product; its gradient is computed after the loop."""
        if not ctx.train or self.base not in ctx.lowering.values.outputs:
            return
        weighted = self.plan.sum
        base = transpose(ctx.value(self.base), weighted.product_order)
        ctx.set_aux(self.node, ORDERED_BASE, base)
        sizes = [known_sizes(ctx, self.weights.output.without_axes(weighted.squeezed)), known_sizes(ctx, ctx.output)]
        if sizes[0] is not None and sizes[1] is not None:
            function = partial(weighted.emit_ordered, ctx)
            steps = ctx.lowering.loop.steps
            over_steps = OverSteps(function, base, steps=steps, argument=sizes[0], result=sizes[1])
            ctx.set_aux(self.node, OVER_STEPS, over_steps)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one (batched) matrix product."""
        once, base, weights = ctx.aux(self.base, PER_SEQUENCE), ctx.value(self.base), ctx.value(self.weights)
        y = attended(ctx, self.weights, *self.plan.sum.all_labels(self.weights.output), once or base)
        if y is not None:
            return y
        if once is not None and ctx.aux(self.weights, PER_SEQUENCE) is None:
            return self.plan.sum.emit_in_beam(ctx, weights, once.values, once.beam)
        over_steps, ordered = ctx.aux(self.node, OVER_STEPS), ctx.aux(self.node, ORDERED_BASE)
        if over_steps is not None:
            return over_steps.product(self.plan.sum.squeeze(weights), ctx.lowering.loop.index)
        if ordered is not None:
            return self.plan.sum.emit_ordered(ctx, self.plan.sum.squeeze(weights), ordered)
        return self.plan.sum.emit(ctx, weights, base)
