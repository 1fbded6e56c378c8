"""`as_is`: the layer output is the loss."""

from __future__ import annotations

from typing import Any, ClassVar, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@register_loss("as_is")
class AsIsLoss(Loss):
    """The sum of the layer output over all valid frames and over the features.

    Whole numbers and truth values are summed as well, but have no gradient.

    as_error: the sum is reported as an error and is not part of the objective.

    Example::

        network = {
            "h": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
            "output": {"class": "eval", "eval": "source(0) ** 2", "from": "h", "loss": "as_is", "loss_scale": 0.1}}
    """

    needs_target: ClassVar[bool] = False

    as_error: bool = option(False, help="only report it as an error")

    def check(self, ctx: LossPlanContext) -> None:
        """Reject what cannot be summed."""
        if ctx.output.dtype == "string" or ctx.output.dtype.startswith("complex"):
            raise ctx.error(
                "the loss 'as_is' sums up the output, so it must be numbers, not %s. Compute the loss in this layer."
                % ctx.output
            )

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Return the sum, or None if it is reported as error."""
        return None if self.as_error else self._sum(ctx)

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return the sum if it is reported as error."""
        return self._sum(ctx) if self.as_error else None

    def _sum(self, ctx: LossContext) -> Any:
        x = ctx.output_value
        if not x.dtype.is_floating:
            x = tf.cast(x, ctx.float_dtype)
        axes = [axis for axis in ctx.output.dynamic_axes if axis != ctx.output.feature_axis]
        mask = ctx.masks(ctx.output, axes)
        if mask is not None:
            x = tf.where(mask, x, tf.zeros_like(x))
        return tf.reduce_sum(x)

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template of the output itself."""
        return output

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return the output itself."""
        return ctx.output_value
