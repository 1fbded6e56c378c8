"""`ce`: cross entropy between a softmax and labels."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional

from returnn_tf.config.options import above, at_least, option
from returnn_tf.graph.aux_values import PRE_ACTIVATION, PRODUCT
from returnn_tf.graph.loss import LossContext, LossNode, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.losses.framewise import Frames, FramewiseLoss
from returnn_tf.ops.activations import safe_log
from returnn_tf.ops.cross_entropy import (
    focal_cross_entropy,
    gaussian_targets,
    smoothed_targets,
    smoothing_entropy,
    soft_cross_entropy,
    sparse_softmax_cross_entropy,
    upper_bound,
)
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.many_labels import TargetSpec, many_labels_cross_entropy
from returnn_tf.ops.xla import in_ops_for_xla
from returnn_tf.util.lazy_tf import tf

_INPUT_TYPES = (None, "prob", "log_prob", "logits")


@dataclasses.dataclass(frozen=True)
class SafeLogOptions:
    """The options in ``safe_log_opts``."""

    eps: float = option(1e-20, help="lower bound of the probabilities", check=above(0))
    use_fake_grad: Optional[bool] = option(
        None, help="gradient where the probability is below eps", inert="that gradient is 0"
    )


@register_loss("ce")
class CrossEntropyLoss(FramewiseLoss):
    """``-sum_k t[k] log p[k]`` summed over the frames, with ``t`` one-hot for labels.

    Computed from the values before the softmax where the layer has that activation.
    label_smoothing s: ``t`` is ``1 - s`` on the label and ``s / (n - 1)`` elsewhere, and the entropy of ``t`` is
    subtracted (Szegedy et al. 2016). focal_loss_factor f: times ``(1 - p[label]) ** f`` (Lin et al. 2017).
    Error: number of frames in which another label has the greatest score.

    Of a layer with at least 1000 outputs that nothing else needs, neither probabilities nor padded frames are computed.

    Example::

        network = {"output": {
            "class": "softmax", "from": "data", "target": "classes", "loss": "ce",
            "loss_opts": {"label_smoothing": 0.1}}}
    """

    focal_loss_factor: float = option(0.0, help="exponent of the focal loss", check=at_least(0))
    label_smoothing: float = option(0.0, help="probability mass taken from the label")
    label_smoothing_gaussian: bool = option(False, help="spread it by a normal distribution over neighbouring labels")
    fake_upper_bound: Optional[float] = option(None, help="upper bound of a frame's value; the gradient is unchanged")
    input_type: Optional[str] = option(
        None, choices=_INPUT_TYPES, help="kind of the layer output; by default as its activation says"
    )
    use_fused: bool = option(True, help="use the values before the softmax if available")
    safe_log_opts: Optional[dict[str, Any]] = option(None, help="options of the logarithm", group=SafeLogOptions)
    debug_dump: bool = option(False, help="print values of every step")

    def uniform_value(self, node: LossNode) -> Optional[float]:
        """Return the logarithm of the number of labels; what is special about smoothed labels only makes it smaller."""
        dim = node.target.output.sparse_dim if node.target is not None else None
        special = (self.focal_loss_factor or None, self.custom_norm_factor, self.custom_inv_norm_factor)
        return math.log(dim.size) if dim is not None and dim.size and special == (None, None, None) else None

    def check(self, ctx: LossPlanContext) -> None:
        """Check the options that require labels."""
        super().check(ctx)
        assert ctx.target is not None
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ctx.error("label_smoothing must be in [0, 1), got %r." % self.label_smoothing)
        for name in ("focal_loss_factor", "label_smoothing"):
            if getattr(self, name) and not ctx.target.sparse:
                raise ctx.error(
                    "%s needs labels, but the target %r is dense: %s. Omit the option, or make the target sparse."
                    % (name, ctx.target_name, ctx.target)
                )

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the frames."""
        sums = self._sums(ctx)
        return super().value(ctx) if sums is None else sums[0]

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the frames."""
        sums = self._sums(ctx)
        return super().error(ctx) if sums is None else sums[1]

    def _sums(self, ctx: LossContext) -> Optional[tuple[Any, Any]]:
        """Return value and error by the fused loss of many labels, None where it does not apply."""
        if "sums" not in ctx.cache:
            ctx.cache["sums"] = None
            if self._may_fuse(ctx):
                labels = ctx.output.dim or 1
                entropy = smoothing_entropy(labels, self.label_smoothing) if self.label_smoothing else 0.0
                off = self.label_smoothing / max(labels - 1, 1)
                spec = TargetSpec(1.0 - self.label_smoothing, off, entropy, self.focal_loss_factor)
                ctx.cache["sums"] = sums_over_frames(ctx, self.frames(ctx), spec)
        sums: Optional[tuple[Any, Any]] = ctx.cache["sums"]
        return sums

    def _may_fuse(self, ctx: LossContext) -> bool:
        """Return whether only sums are wanted, of a softmax that nothing else needs."""
        if not self.use_fused or not ctx.target.sparse or not has_many_labels(ctx):
            return False
        plain = self.input_type == "logits" or ctx.pre_activation("softmax", "log_softmax") is not None
        return plain and not (self.label_smoothing_gaussian or self.fake_upper_bound is not None or self.debug_dump)

    def frame_values(self, ctx: LossContext, frames: Frames) -> Any:
        """Compute the cross entropy per frame."""
        logits = self._logits(ctx)
        if logits is not None:
            values = self._fused(frames, logits)
        else:
            values = self._from_log_probs(frames, self._log_probs(ctx, frames))
        if self.fake_upper_bound is not None:
            values = upper_bound(values, self.fake_upper_bound)
        if self.debug_dump:
            with tf.control_dependencies([tf.print(ctx.node.path, "ce:", values)]):
                values = tf.identity(values)
        return values

    def _logits(self, ctx: LossContext) -> Any:
        if self.input_type == "logits":
            return ctx.output_value
        return ctx.pre_activation("softmax", "log_softmax") if self.use_fused else None

    def _log_probs(self, ctx: LossContext, frames: Frames) -> Any:
        output = frames.arrange(ctx.output_value)
        before = ctx.aux(ctx.node, PRE_ACTIVATION)
        if self.input_type == "log_prob" or (
            self.input_type is None and before is not None and before.activation == "log_softmax"
        ):
            return output
        return safe_log(output, SafeLogOptions(**(self.safe_log_opts or {})).eps)

    def _fused(self, frames: Frames, logits: Any) -> Any:
        """Compute it from the values before the softmax."""
        if not frames.sparse:
            return tf.nn.softmax_cross_entropy_with_logits(labels=frames.target, logits=frames.arrange(logits))
        logits = frames.arrange(logits, clean=False)
        labels = frames.zero_padded(frames.target)
        targets, entropy = None, 0.0
        if self.label_smoothing:
            targets = self._soft_targets(labels, logits.shape[-1], logits.dtype)
            entropy = smoothing_entropy(logits.shape[-1], self.label_smoothing)
        if self.focal_loss_factor:
            return focal_cross_entropy(logits, labels, targets, entropy, self.focal_loss_factor)
        if targets is None:
            return sparse_softmax_cross_entropy(logits, labels)
        return soft_cross_entropy(logits, targets) - entropy

    def _from_log_probs(self, frames: Frames, log_probs: Any) -> Any:
        """Compute it from ``log p``."""
        if not frames.sparse:
            return -tf.reduce_sum(frames.target * log_probs, axis=-1)
        labels = frames.zero_padded(frames.target)
        hard = -tf.gather(log_probs, labels, batch_dims=labels.shape.rank)
        values = hard
        if self.label_smoothing:
            classes = log_probs.shape[-1]
            values = -tf.reduce_sum(self._soft_targets(labels, classes, log_probs.dtype) * log_probs, axis=-1)
            values -= smoothing_entropy(classes, self.label_smoothing)
        return self._focal(values, hard)

    def _soft_targets(self, labels: Any, classes: int, dtype: Any) -> Any:
        make = gaussian_targets if self.label_smoothing_gaussian else smoothed_targets
        return make(labels, classes, self.label_smoothing, dtype)

    def _focal(self, values: Any, hard: Any) -> Any:
        """Compute ``values * (1 - exp(-hard)) ** factor``."""
        if not self.focal_loss_factor:
            return values
        missed = tf.maximum(-tf.math.expm1(-hard), tf.cast(1e-12, hard.dtype))
        return values * missed**self.focal_loss_factor


#: Label count above which the fused loss is faster, also without padding and in its TensorFlow form.
MIN_LABELS = 1000


def has_many_labels(ctx: LossContext) -> bool:
    """Return whether sums over the frames should be computed from the input of the layer, whose values nothing needs.

    Not on a GPU, where it has not been measured, and not for XLA, which must know the number of frames.
    """
    dim, lowering = ctx.output.dim, ctx.lowering
    if dim is None or dim < MIN_LABELS or ctx.aux(ctx.node, PRODUCT) is None:
        return False
    needed = ctx.node in lowering.options.readers or lowering.options.looks_at_outputs
    differentiated_twice = lowering.options.second_derivatives or lowering.after_step.meta_losses
    unfit = in_ops_for_xla() or tf.config.get_visible_devices("GPU")
    return not (needed or differentiated_twice or unfit)


def sums_over_frames(ctx: LossContext, frames: Frames, spec: TargetSpec) -> tuple[Any, Any]:
    """Return the sums of values and errors over the frames that are not padded; others are not computed."""
    product = ctx.aux(ctx.node, PRODUCT)
    assert product is not None and frames.sparse
    x, labels = transpose(product.x, frames.order), tf.cast(frames.target, tf.int32)
    mask = None if frames.mask is None else tf.broadcast_to(frames.mask, tf.shape(labels))
    x, labels = tf.reshape(x, [-1, x.shape[-1]]), tf.reshape(labels, [-1])
    if mask is not None:
        valid = tf.where(tf.reshape(mask, [-1]))[:, 0]
        x, labels = tf.gather(x, valid), tf.gather(labels, valid)
    wanted = ctx.train and ctx.loss_node.scale
    return many_labels_cross_entropy(
        x, product.weights, product.bias, labels, spec, transposed=product.transposed, with_gradient=bool(wanted),
        product_dtype=ctx.of_layer.product_dtype,
    )  # fmt: skip
