"""`triplet_loss`: embeddings of one label nearer to each other than to those of other labels."""

from __future__ import annotations

from typing import Any, List, Optional

from returnn_tf.layers.loss_base import Loss, LossContext, LossPlanContext
from returnn_tf.layers.options import option
from returnn_tf.layers.registry import register_loss
from returnn_tf.ops.shape import transpose
from returnn_tf.util.lazy_tf import tf


@register_loss("triplet_loss")
class TripletLoss(Loss):
    """``max(0, margin + d(a, s) - d(a, o))`` with the cosine distance d, summed over all triples of the batch.

    The features are three embeddings, whose labels are the target [batch, 3]. Every embedding of the batch is once the
    anchor a, with all others of its label as s and all of other labels as o (Kamper, Wang & Livescu 2016).
    multi_view_training: six embeddings, three of each view; a is from one view, s and o from the other one
    (He, Wang & Livescu 2017).

    Example::

        extern_data = {
            "data": {"shape": (4,), "time_dim_axis": None},
            "labels": {"shape": (3,), "dim": 2, "sparse": True, "time_dim_axis": None}}
        network = {"output": {
            "class": "linear", "activation": "tanh", "n_out": 9, "from": "data",
            "loss": "triplet_loss", "target": "labels", "loss_opts": {"margin": 0.5}}}
    """

    margin: float = option(help="by how much the distance to other labels should be greater")
    multi_view_training: bool = option(False, help="six embeddings, three of each view")

    @property
    def _parts(self) -> int:
        return 6 if self.multi_view_training else 3

    def check(self, ctx: LossPlanContext) -> None:
        """Features for that many embeddings, and three labels."""
        output, target = ctx.output, ctx.target
        assert target is not None
        if (
            output.sparse
            or output.rank != 2
            or output.batch_axis is None
            or output.dim is None
            or output.dim % self._parts
        ):
            raise ctx.error(
                "the loss 'triplet_loss' needs an output [batch, features] with a number of features that is a "
                "multiple of %d, but it is %s." % (self._parts, output)
            )
        if not target.sparse or target.rank != 2 or target.batch_axis is None or 3 not in target.static_shape:
            raise ctx.error(
                "the loss 'triplet_loss' needs three labels per entry of the batch, [batch, 3], but the "
                "target %r is %s." % (ctx.target_name, target)
            )

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the triples."""
        output, target = ctx.output, ctx.target
        batch, feature = output.batch_axis, output.feature_axis
        x = transpose(ctx.output_value, [batch, feature])  # type: ignore[list-item]
        labels = transpose(ctx.target_value, [target.batch_axis, 1 - target.batch_axis])  # type: ignore[list-item,operator]
        labels = tf.reshape(tf.transpose(labels), [-1])
        parts = [tf.math.l2_normalize(part, axis=1) for part in tf.split(x, self._parts, axis=1)]
        views: List[Any] = [tf.concat(parts[i : i + 3], axis=0) for i in range(0, self._parts, 3)]
        same = tf.equal(labels[:, None], labels[None])
        if len(views) == 1:
            other_entry = tf.logical_not(tf.eye(tf.shape(labels)[0], dtype=tf.bool))
            return self._hinges(views[0], views[0], tf.logical_and(same, other_entry), same)
        return self._hinges(views[0], views[1], same, same) + self._hinges(views[1], views[0], same, same)

    def _hinges(self, anchors: Any, others: Any, positive: Any, same: Any) -> Any:
        """Over all anchors, all positive and all different others."""
        distance = 1.0 - tf.matmul(anchors, others, transpose_b=True)
        hinge = tf.nn.relu(self.margin + distance[:, :, None] - distance[:, None, :])
        wanted = tf.logical_and(positive[:, :, None], tf.logical_not(same)[:, None, :])
        return tf.reduce_sum(tf.where(wanted, hinge, tf.zeros_like(hinge)))
