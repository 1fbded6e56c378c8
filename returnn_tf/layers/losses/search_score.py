"""`search_score`: the log score of the search as a loss."""

from __future__ import annotations

from typing import Any, ClassVar, Optional

from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.search.decide import DECIDED_SCORES, DecideLayer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@register_loss("search_score")
class SearchScoreLoss(Loss):
    """Minus the log score of a search, summed over the sequences, and over the hypotheses of a beam.

    On "decide" it is the score of the chosen hypothesis, as "decide" compares it. Hypotheses that only fill up the beam
    (score -inf) don't count. The gradient flows into the network that computed the scores. Without search there is no
    value, which is allowed if the loss is only reported (loss_scale 0).

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "max_seq_len": 4, "unit": {
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "prob": {"class": "softmax", "target": "classes", "from": ["emb", "base:mean"]},
                "end": {"class": "compare", "from": "output", "value": 0},
                "output": {"class": "choice", "search": True, "target": "classes", "beam_size": 3,
                    "initial_output": 0, "from": "prob"}}},
            "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
            "output": {"class": "decide", "from": "loop", "loss": "search_score"}}
    """

    needs_target: ClassVar[bool] = False

    def check(self, ctx: LossPlanContext) -> bool:
        """Check that there are hypotheses; False if nothing needs them."""
        layer = ctx.node.layer
        decided = isinstance(layer, DecideLayer) and layer.source.output.beam is not None
        searched = ctx.output.beam is not None or decided
        if not searched and layer.loss_scale != 0 and self.scale:
            raise ctx.error(
                "the loss 'search_score' needs the hypotheses of a search, but the output %s has none. Give the layer "
                "the option only_on_search=True or loss_scale=0, or the choice search=True." % ctx.output
            )
        return searched

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over all kept hypotheses; None without search."""
        if not ctx.loss_node.found:
            return None
        scores = self._scores(ctx)
        return -tf.reduce_sum(tf.where(tf.math.is_inf(scores), tf.zeros_like(scores), scores))

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template [batch]."""
        assert output.batch_axis is not None
        return Data((output.dims[output.batch_axis],), float_dtype, beam=output.beam)

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return minus the scores, one per entry of the batch axis."""
        return -tf.reshape(self._scores(ctx), [-1])

    def _scores(self, ctx: LossContext) -> Any:
        decided = ctx.aux(ctx.node, DECIDED_SCORES)
        if decided is not None:
            return decided
        assert ctx.output.beam is not None
        return ctx.lowering.search.beam_scores[ctx.output.beam.of]
