"""`sampling_loss`: cross entropy over a sample of the labels."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.loss import LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.losses.framewise import Frames, FramewiseLoss
from returnn_tf.layers.losses.sampled_weights import SampledWeights, sampled_weights
from returnn_tf.ops.cross_entropy import safe_log, sparse_softmax_cross_entropy
from returnn_tf.ops.sampled_loss import SAMPLER_NAMES, draws_by, nce_loss, sampled_logits, sampled_softmax_loss
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class UnigramOptions:
    """The options in ``sampler_args``."""

    unigrams: list[float] = option((), help="counts of all labels")
    distortion: float = option(1.0, help="exponent of the counts")


@register_loss("sampling_loss")
class SamplingLoss(FramewiseLoss):
    """Sampled softmax (Jean et al. 2015) or noise contrastive estimation (Gutmann & Hyvarinen 2010) in training.

    In training the scores of only ``num_sampled`` labels are computed, drawn again in every step, with replacement, and
    there is no error. Outside of training, or with use_full_softmax, it is the loss "ce". The layer has weights ``W``
    with one row for each label, e.g. a softmax with ``use_transposed_weights``; it may be in a loop if it need not run
    step by step there.

    Example::

        network = {"output": {
            "class": "softmax", "from": "data", "use_transposed_weights": True,
            "loss": "sampling_loss", "target": "classes", "loss_opts": {"num_sampled": 2}}}
    """

    num_sampled: int = option(128, help="number of labels drawn per step (per split)")
    num_splits: int = option(1, help="number of parts the frames are split into, each with labels of its own")
    sampler: str = option(
        "log_uniform",
        choices=SAMPLER_NAMES,
        help="how labels are drawn; learned_unigram: as often as so far",
    )
    sampler_args: Optional[dict[str, Any]] = option(None, help="options of fixed_unigram", group=UnigramOptions)
    nce_loss: bool = option(False, help="noise contrastive estimation instead of sampled softmax")
    nce_log_norm_term: float = option(0.0, help="log of the normalisation, subtracted from the scores for NCE")
    use_full_softmax: bool = option(False, help="always compute the full softmax")
    remove_accidental_hits: Optional[bool] = option(
        None, help="ignore drawn labels that equal the target (default: not for NCE)"
    )

    def check(self, ctx: LossPlanContext) -> Optional[SampledWeights]:
        """Check for labels, and for weights by label."""
        super().check(ctx)
        assert ctx.target is not None
        if self.sampler == "fixed_unigram":
            counts = (self.sampler_args or {}).get("unigrams") or ()
            if len(counts) != ctx.target.dim or min(counts) < 0 or not sum(counts) > 0:
                raise ctx.error(
                    "sampler fixed_unigram needs 'sampler_args': {'unigrams': [...]} with the counts of all %s labels."
                    % ctx.target.dim
                )
        elif self.sampler_args:
            raise ctx.error("sampler_args are for the sampler fixed_unigram, not %r. Remove them." % self.sampler)
        for name in ("num_sampled", "num_splits"):
            if getattr(self, name) < 1:
                raise ctx.error("%s must be at least 1, got %d." % (name, getattr(self, name)))
        if not ctx.target.sparse:
            raise ctx.error(
                "the loss 'sampling_loss' needs labels, but the target %r is dense: %s." % (ctx.target_name, ctx.target)
            )
        return sampled_weights(ctx) if ctx.train and not self.use_full_softmax else None

    def _samples(self, ctx: LossContext) -> bool:
        return ctx.train and not self.use_full_softmax

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the frames."""
        if not self._samples(ctx):
            return super().value(ctx)
        frames = self.frames(ctx)
        x = _weights(ctx).rows(ctx.ctx, frames.data)
        labels = tf.cast(frames.target, tf.int32)
        if frames.mask is not None:
            mask = tf.broadcast_to(frames.mask, tf.shape(labels))
            x, labels = tf.boolean_mask(x, mask), tf.boolean_mask(labels, mask)
        else:
            x, labels = tf.reshape(x, [-1, x.shape[-1]]), tf.reshape(labels, [-1])
        count = tf.shape(labels)[0]
        total = tf.zeros([], x.dtype)
        for i in range(self.num_splits):
            part = slice(count * i // self.num_splits, count * (i + 1) // self.num_splits)
            total += tf.reduce_sum(self._sampled(ctx, x[part], labels[part], "split%d" % i))
        return total

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Compute the frame error rate as "ce" does; None where scores are only sampled."""
        return None if self._samples(ctx) else super().error(ctx)

    def frame_values(self, ctx: LossContext, frames: Frames) -> Any:
        """Compute the full softmax."""
        labels = frames.zero_padded(frames.target)
        logits = ctx.pre_activation("softmax", "log_softmax")
        if logits is not None:
            return sparse_softmax_cross_entropy(frames.arrange(logits, clean=False), labels)
        log_probs = safe_log(frames.arrange(ctx.output_value))
        return -tf.gather(log_probs, labels, batch_dims=log_probs.shape.rank - 1)

    def _sampled(self, ctx: LossContext, x: Any, labels: Any, name: str) -> Any:
        weights, bias = _weights(ctx).params(ctx.ctx)
        if bias is None:
            bias = tf.zeros([weights.shape[0]], weights.dtype)
        assert ctx.target.dim is not None
        sampler = draws_by(self.sampler, ctx.target.dim, **(self.sampler_args or {}))
        remove = self.remove_accidental_hits
        logits = sampled_logits(
            x,
            weights,
            bias,
            labels,
            ctx.ctx.seed("sampling/" + name),
            self.num_sampled,
            sampler,
            not self.nce_loss if remove is None else remove,
        )
        return nce_loss(logits - self.nce_log_norm_term) if self.nce_loss else sampled_softmax_loss(logits)


def _weights(ctx: LossContext) -> SampledWeights:
    """Return the weights whose rows are scored."""
    weights = ctx.loss_node.found
    assert isinstance(weights, SampledWeights)
    return weights
