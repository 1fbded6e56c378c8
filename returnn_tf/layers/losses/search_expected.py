"""`expected_loss`: another loss averaged over the hypotheses of a search (minimum Bayes risk)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Optional, Union

from returnn_tf.config.errors import ConfigError, TargetError
from returnn_tf.config.options import check_options, declared_options, option
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext
from returnn_tf.graph.registry import LOSSES, register_loss
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

_KINDS = {"error": True, "value": False, "loss": False}
_NO_HYPOTHESES = (
    "the loss 'expected_loss' needs the hypotheses of a search, but the output %s has none. Put it on a layer before "
    "'decide', and give the choice search=True to search in training."
)


@dataclasses.dataclass(frozen=True)
class _Inner:
    """The loss of each hypothesis, and the layout of its values."""

    loss: Loss
    template: Data


@register_loss("expected_loss")
class ExpectedLoss(Loss):
    """``sum over hypotheses y of q(y) (l(y) - mean of l)``, summed over the sequences.

    Shannon 2017, "Optimizing expected word error rate via sampling"; Prabhavalkar et al. 2018.

    ``l`` is another loss (or its error) of each hypothesis, and q(y) the probability assigned by the search, divided by
    that of the whole beam (norm_scores). Subtracting the mean over the beam (subtract_average_loss) only reduces the
    variance of the gradient if q is normalised with its gradient; with ``norm_scores_stop_gradient`` the divisor is
    treated as a constant. With ``loss_correction_grad_only`` the value is the expectation without the mean, and only
    the gradient includes it. With ``divide_beam_size`` everything is divided by the number of hypotheses.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "max_seq_len": 4, "unit": {
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "prob": {"class": "softmax", "target": "classes", "from": ["emb", "base:mean"]},
                "end": {"class": "compare", "from": "output", "value": 0},
                "output": {"class": "choice", "search": True, "target": "classes", "beam_size": 3,
                    "initial_output": 0, "from": "prob"}}},
            "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
            "output": {
                "class": "copy", "from": "loop", "target": "classes", "loss": "expected_loss",
                "loss_opts": {"loss": {"class": "edit_distance"}, "loss_kind": "error"}}}
    """

    needs_target: ClassVar[bool] = True

    loss: Union[str, dict[str, Any]] = option(
        help="the loss of each hypothesis: its name, or {'class': name, option: value}"
    )
    loss_kind: str = option(choices=_KINDS, help="which part of that loss to average; loss: the same as value")
    norm_scores: bool = option(True, help="divide the probabilities by that of the whole beam")
    norm_scores_stop_gradient: bool = option(True, help="treat that divisor as a constant")
    divide_beam_size: bool = option(True, help="divide by the number of hypotheses")
    subtract_average_loss: bool = option(True, help="subtract the mean of the losses of a beam")
    loss_correction_grad_only: bool = option(False, help="subtract it only in the gradient, not in the value")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return no references."""
        return iter(())

    def check(self, ctx: LossPlanContext) -> _Inner:
        """Check that there are hypotheses, and that the other loss fits."""
        if ctx.output.beam is None and ctx.train:
            raise ctx.error(_NO_HYPOTHESES % ctx.output)
        inner = self._inner_loss()
        inner.check(ctx)
        try:
            template = inner.unreduced_template(ctx.output, ctx.semantics.float_dtype)
        except ConfigError as exc:
            raise ctx.error("expected_loss: %s" % exc) from exc
        if template.batch_axis is None:
            raise ctx.error("expected_loss: the loss %r has no values by sequence." % inner.class_name)
        inner.seal("The loss %r of layer %r" % (inner.class_name, ctx.node.path))
        return _Inner(inner, template)

    def _inner_loss(self) -> Loss:
        options: dict[str, Any] = {"class": self.loss} if isinstance(self.loss, str) else dict(self.loss)
        name = options.pop("class", None)
        cls = LOSSES.get(name, "loss 'expected_loss'")
        if not cls.needs_target:
            raise TargetError("expected_loss: the loss %r has no target to compare with, so it is not a risk." % name)
        check_options(cls, options, where="loss 'expected_loss': loss %r" % name)
        loss: Loss = cls()
        infos = declared_options(cls)
        for key, value in options.items():
            setattr(loss, infos[key].attribute, infos[key].taken(value))
        return loss

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the sequences."""
        beam = ctx.output.beam
        if beam is None:
            raise TargetError("Layer %r: %s" % (ctx.node.path, _NO_HYPOTHESES % ctx.output))
        scores = ctx.lowering.search.beam_scores[beam.of]
        if self.norm_scores:
            total = tf.reduce_logsumexp(scores, axis=1, keepdims=True)
            scores -= tf.stop_gradient(total) if self.norm_scores_stop_gradient else total
        weights = tf.exp(scores)
        losses = tf.cast(tf.reshape(self._by_sequence(ctx), [-1, beam.size]), weights.dtype)
        plain = weights * losses
        if self.subtract_average_loss:
            corrected = weights * (losses - tf.reduce_mean(losses, axis=1, keepdims=True))
            if self.loss_correction_grad_only:
                corrected += tf.stop_gradient(plain - corrected)
            plain = corrected
        result = tf.reduce_sum(plain)
        return result / beam.size if self.divide_beam_size else result

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return None; the error of the best hypothesis is computed after a "decide" layer."""
        return None

    def _by_sequence(self, ctx: LossContext) -> Any:
        """Return the losses of the hypotheses, [batch * beam]."""
        inner = ctx.loss_node.found
        assert isinstance(inner, _Inner)
        values = inner.loss.unreduced(ctx, error=_KINDS[self.loss_kind])
        template = inner.template
        mask = ctx.masks(template, template.dynamic_axes)
        if mask is not None:
            values = tf.where(mask, values, tf.zeros_like(values))
        return tf.reduce_sum(values, axis=[a for a in range(template.rank) if a != template.batch_axis])
