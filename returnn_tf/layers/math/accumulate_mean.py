"""`accumulate_mean`: a running mean over the training data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class AccumulateMeanPlan(LayerPlan):
    """The plan of `AccumulateMeanLayer`.

    :param reduced: the axes that the mean is over
    """

    reduced: Sequence[int]


@register_layer("accumulate_mean")
class AccumulateMeanLayer(ConcatInputLayer, Planned[AccumulateMeanPlan]):
    """Exponential moving average ``m += exp_average * (mean(x) - m)``, updated in every training step; e.g. a prior.

    The mean is over the valid frames of all sequences of the batch. The output is ``m`` as it was before the step.
    Parameters: ``mean_1``, of the axes that remain after the mean, not trainable.
    Lengths: none.

    Example::

        network = {
            "p": {"class": "softmax", "from": "data", "loss": "ce"},
            "output": {"class": "accumulate_mean", "exp_average": 0.001, "is_prob_distribution": True, "from": "p"}}
    """

    changes_variables = True
    exp_average: float = option(help="weight of the new mean, between 0 and 1")
    axes: Axes = option("bt", help="the axes to average over")
    initial_value: Optional[float] = option(None, help="initial mean; default 0, or 1/dim if is_prob_distribution")
    is_prob_distribution: Optional[bool] = option(None, help="whether the source is a probability distribution")

    def template(self, ctx: PlanContext) -> AccumulateMeanPlan:
        """Infer the output: the axes that are left."""
        data = self.input_template(ctx)
        reduced = ctx.axes(data, self.axes)
        out = with_feature_default(data.without_axes(reduced))
        initial = self.initial_value
        if initial is None:
            is_softmax = self.source.layer.activation == "softmax"
            is_prob = is_softmax if self.is_prob_distribution is None else self.is_prob_distribution
            initial = 1.0 / ctx.need_static(ctx.need_feature(out), "the feature axis") if is_prob else 0.0
        # The name in checkpoints of the reference, where an op of the layer is already called "mean".
        ctx.param("mean_1", out.dims, initial, dtype=data.dtype, trainable=False)
        return AccumulateMeanPlan(out, reduced)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the parameter; the update runs after the step."""
        if ctx.train:
            mean = tf.stop_gradient(self._batch_mean(ctx))
            variable = ctx.variable("mean_1")
            ctx.update(lambda: variable.assign_add(self.exp_average * (mean - variable)))
        return ctx.param("mean_1")

    def _batch_mean(self, ctx: EmitContext) -> Any:
        data = self.input
        x = self.emit_input(ctx)
        mask = ctx.masks(data, self.plan.reduced)
        if mask is None:
            return tf.reduce_mean(x, axis=self.plan.reduced)
        weights = tf.broadcast_to(tf.cast(mask, x.dtype), tf.shape(x))
        total = tf.reduce_sum(tf.where(mask, x, tf.zeros_like(x)), axis=self.plan.reduced)
        return total / tf.maximum(tf.reduce_sum(weights, axis=self.plan.reduced), 1.0)
