"""Fused losses of a softmax over many labels, computed from the input of the layer without keeping its values."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.aux_values import PRODUCT
from returnn_tf.graph.loss import LossContext
from returnn_tf.layers.losses.framewise import Frames
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.many_labels import TargetSpec, many_labels_cross_entropy
from returnn_tf.ops.xla import in_ops_for_xla
from returnn_tf.util.lazy_tf import tf

#: Label count above which the fused loss is faster, also without padding and in its TensorFlow form.
MIN_LABELS = 1000


def has_many_labels(ctx: LossContext) -> bool:
    """Return whether sums over the frames should be computed from the input of the layer, whose values nothing needs.

    Not on a GPU, where it has not been measured, and not for XLA, which must know the number of frames.
    """
    dim, lowering = ctx.output.dim, ctx.lowering
    if dim is None or dim < MIN_LABELS or ctx.aux(ctx.node, PRODUCT) is None:
        return False
    needed = ctx.node in lowering.readers or lowering.check_numerics
    differentiated_twice = lowering.second_derivatives or lowering.meta_losses
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
        x, product.weights, product.bias, labels, spec, transposed=product.transposed, with_gradient=bool(wanted)
    )
