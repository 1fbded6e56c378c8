"""`sampling_loss`: cross entropy over a sample of the labels."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossContext, LossPlanContext
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.losses.framewise import Frames, FramewiseLoss
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.loops.nodes import AccumLayer, ExitLayer
from returnn_tf.ops.activations import safe_log
from returnn_tf.ops.cross_entropy import sparse_softmax_cross_entropy
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.sampled_loss import SAMPLER_NAMES, draws_by, nce_loss, sampled_logits, sampled_softmax_loss
from returnn_tf.tensor import Data
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
    num_splits: int = option(1, help="number of parts the frames are split into, each with separately drawn labels")
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
        x = _weights(ctx).rows(ctx.of_layer, frames.data)
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
        weights, bias = _weights(ctx).params(ctx.of_layer)
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
            ctx.of_layer.seed("sampling/" + name),
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


@dataclasses.dataclass(frozen=True)
class SampledWeights:
    """Weights by label, the bias, and the input of their product.

    :param node: the layer with the parameters "W" [labels, inputs] and "b"
    :param exit: the end of the loop that the layer is in
    """

    node: Node
    exit: Optional[Node] = None

    @property
    def input(self) -> Data:
        """Return the template of the input after the loop."""
        layer = self.node.layer
        data = layer.input if isinstance(layer, ConcatInputLayer) else layer.source.output
        if self.exit is None:
            return data
        assert isinstance(self.exit.layer, ExitLayer)
        return self.exit.layer.outside(data)

    def rows(self, ctx: EmitContext, frames: Data) -> Any:
        """Return the input [frames, inputs], with the axes in the order of a template with features last."""
        layer = self.node.layer
        own = EmitContext(self.node, ctx.lowering)
        data = self.input
        if isinstance(layer, ConcatInputLayer):
            x, inside = layer.emit_input(own), layer.input
        else:
            x, inside = own.source(), layer.source.output
        if self.exit is not None:
            assert isinstance(self.exit.layer, ExitLayer)
            x = transpose(x, self.exit.layer.order_outside(inside))
        return transpose(x, frame_axes(data, frames))

    def params(self, ctx: EmitContext) -> tuple[Any, Any]:
        """Return the weights [labels, inputs], and the bias [labels] or None."""
        own = EmitContext(self.node, ctx.lowering)
        return own.param("W"), own.param("b") if "b" in self.node.params else None


def frame_axes(data: Data, frames: Data) -> list[int]:
    """Return the axes of the input in the order of a template with features last; the features of the input last."""
    outer = [dim for axis, dim in enumerate(frames.dims) if axis != frames.feature_axis]
    return [data.dims.index(dim) for dim in outer] + [data.feature_axis]  # type: ignore[list-item]


def sampled_weights(ctx: LossPlanContext) -> SampledWeights:
    """Return the weights of the layer with the loss.

    :raises ConfigError: it has no weights by label, or other axes than its input
    """
    node, exit_node = ctx.node, None
    if isinstance(node.layer, ExitLayer):
        exit_node, node = node, node.sources[0]
        if isinstance(node.layer, AccumLayer):
            raise ctx.error(
                "the loss 'sampling_loss' can't be on a layer that runs in a loop step by step. Let nothing in the "
                "loop depend on it, or set 'loss_opts': {'use_full_softmax': True}."
            )
    weights = node.params.get("W")
    labels = None if ctx.target is None else ctx.target.dim
    shape = _shape(weights)
    if weights is None or (shape is not None and (len(shape) != 2 or shape[0] != labels)):
        raise ctx.error(
            "the loss 'sampling_loss' needs a layer with weights 'W' whose rows are the %s labels of the target, but "
            "%s. Use a softmax layer with 'use_transposed_weights': True, or set 'loss_opts': "
            "{'use_full_softmax': True}."
            % (labels, "it has none" if weights is None else "they are %s" % (list(shape or ()),))
        )
    found = SampledWeights(node, exit_node)
    data = _input_of(ctx, node, found)
    frames = ctx.output
    outer = [dim for axis, dim in enumerate(frames.dims) if axis != frames.feature_axis]
    inner = [dim for axis, dim in enumerate(data.dims) if axis != data.feature_axis]
    if data.sparse or data.feature_axis is None:
        raise ctx.error("the loss 'sampling_loss' needs a dense source, but it is %s." % data)
    if set(outer) != set(inner) or (shape is not None and data.dim != shape[1]):
        raise ctx.error(
            "the loss 'sampling_loss': the source %s must have the axes of the output %s, and one feature for each "
            "column of the weights %s." % (data, frames, list(shape or ()))
        )
    return found


def _input_of(ctx: LossPlanContext, node: Node, found: SampledWeights) -> Data:
    if not isinstance(node.layer, ConcatInputLayer) and len(node.sources) != 1:
        raise ctx.error("the loss 'sampling_loss' needs a layer with one source, but there are %d." % len(node.sources))
    return found.input


def _shape(param: Any) -> Optional[tuple[Any, ...]]:
    """Return the shape of a parameter, where it is known."""
    if isinstance(param, LayerAsParam):
        return tuple(dim.size for dim in param.dims)
    shape = getattr(param, "shape", None)
    return None if shape is None else tuple(shape)
