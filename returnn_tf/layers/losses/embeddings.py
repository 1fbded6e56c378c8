"""Losses on embeddings: `triplet_loss`, and `deep_clustering`."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext, batch_major, frame_axis, frame_order
from returnn_tf.graph.registry import register_loss
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def _need_vectors(loss: Loss, ctx: LossPlanContext) -> None:
    output = ctx.output
    if output.sparse or not output.dtype.startswith("float") or output.dim is None:
        raise ctx.error("the loss %r needs dense float output with features, but it is %s." % (loss.class_name, output))


def _frame_mask(ctx: LossContext, data: Data) -> Any:
    """Return the mask of valid frames, to be broadcast over features; None without padding."""
    return ctx.masks(data, [axis for axis in data.dynamic_axes if axis != data.feature_axis])


@register_loss("triplet_loss")
class TripletLoss(Loss):
    """Distances of embeddings with the same label, plus what those with other labels lack to ``margin``.

    The features are three embeddings side by side: the anchor, one with the same label, one with another; the target
    has their three labels per frame (or per sequence, if there is no time axis). Over all ordered pairs of embeddings
    in the batch, also those of an embedding with itself, with the distance ``d = 1 - cosine``:
    ``0.5 * sum of d over pairs with the same label + 0.5 * sum of max(margin - d, 0) over the others``.
    As in RETURNN, a pair is also taken as the same where the second label is 0: count labels from 1.

    With ``multi_view_training`` there are six embeddings, three of each view: ``a1 a2 a3 c1 c2 c3``; the loss is the
    sum of that of ``a1 c2 c3`` and that of ``a2 c2 a3``, and c1 is not used. Reports divide by 9 (18) times the number
    of frames. No error.

    Example::

        extern_data = {"data": {"shape": (4,), "time_dim_axis": None},
                       "labels": {"shape": (3,), "dim": 5, "sparse": True, "time_dim_axis": None}}
        network = {
            "a": {"class": "linear", "activation": None, "n_out": 2, "from": "data"},
            "b": {"class": "linear", "activation": None, "n_out": 2, "from": "data"},
            "c": {"class": "linear", "activation": None, "n_out": 2, "from": "data"},
            "output": {
                "class": "copy", "from": ["a", "b", "c"], "loss": "triplet_loss", "target": "labels",
                "loss_opts": {"margin": 0.5}}}
    """

    ignores_padding = True
    mixes_sequences = True

    margin: float = option(help="the distance that embeddings with different labels should have at least")
    multi_view_training: bool = option(False, help="six embeddings, of two views")

    def check(self, ctx: LossPlanContext) -> None:
        """Check that the features are three (six) embeddings, and that there are three labels for them."""
        assert ctx.target is not None
        _need_vectors(self, ctx)
        output, target, blocks = ctx.output, ctx.target, 6 if self.multi_view_training else 3
        if output.dim is None or output.dim % blocks:
            raise ctx.error("the output consists of %d embeddings, but is %s." % (blocks, output))
        if not target.sparse or target.dims[-1].size != 3 or target.rank != output.rank or output.batch_axis is None:
            raise ctx.error(
                "the target %r needs 3 labels for each frame of the output %s, in its last axis, but is %s."
                % (ctx.target_name, output, target)
            )

    def value(self, ctx: LossContext) -> Any:
        """Compare all pairs of rows."""
        x, labels = self._rows(ctx)
        blocks = tf.split(x, 6 if self.multi_view_training else 3, axis=-1)
        labels = tf.reshape(tf.transpose(labels), [-1])
        if not self.multi_view_training:
            return self._over_pairs(blocks, labels)
        a1, a2, a3, _, c2, c3 = blocks
        return self._over_pairs([a1, c2, c3], labels) + self._over_pairs([a2, c2, a3], labels)

    def _rows(self, ctx: LossContext) -> tuple[Any, Any]:
        """Return the features [frames, features] and labels [frames, 3] of all valid frames."""
        x, data = batch_major(ctx.output_value, ctx.output)
        labels, target = ctx.target_value, ctx.target
        first = [axis for axis in frame_order(target) if axis != target.rank - 1]
        labels = tf.transpose(labels, [*first, target.rank - 1])
        mask = _frame_mask(ctx, data)
        if mask is None:
            return tf.reshape(x, [-1, x.shape[-1]]), tf.reshape(labels, [-1, 3])
        mask = tf.broadcast_to(tf.squeeze(mask, -1) if mask.shape.rank == x.shape.rank else mask, tf.shape(x)[:-1])
        return tf.boolean_mask(x, mask), tf.boolean_mask(labels, mask)

    def _over_pairs(self, blocks: list[Any], labels: Any) -> Any:
        x = tf.math.l2_normalize(tf.concat(blocks, axis=0), axis=-1, epsilon=1e-15)
        distance = 1.0 - tf.matmul(x, x, transpose_b=True)
        same = tf.logical_or(tf.equal(labels, labels[:, None]), tf.equal(labels, 0))
        missing = tf.maximum(tf.cast(self.margin, x.dtype) - distance, 0.0)
        return 0.5 * tf.reduce_sum(tf.where(same, distance, missing))

    def count(self, ctx: LossContext) -> Any:
        """Return 9 (18) times the number of frames, unless an option sets the factor."""
        if self.custom_norm_factor is not None or self.custom_inv_norm_factor is not None:
            return super().count(ctx)
        return (18.0 if self.multi_view_training else 9.0) * tf.cast(
            tf.reduce_sum(ctx.lens(ctx.output)), ctx.float_dtype
        )


@register_loss("deep_clustering")
class DeepClusteringLoss(Loss):
    """Embeddings of the bins of a spectrum whose clusters are the sources of a mixture (Hershey et al. 2016).

    The output of a frame holds for each bin a vector of ``embedding_dimension``, the target for each bin a vector of
    ``nr_of_sources``, which tells the source of the bin. Per sequence, with V [frames * bins, embedding_dimension] and
    Y [frames * bins, nr_of_sources]: ``|V'V|^2 - 2 |V'Y|^2 + |Y'Y|^2``, summed over the sequences. No error.

    Example::

        extern_data = {"data": {"dim": 4}, "sources": {"dim": 6}}
        network = {"output": {
            "class": "linear", "activation": "tanh", "n_out": 9, "from": "data", "loss": "deep_clustering",
            "target": "sources", "loss_opts": {"embedding_dimension": 3, "nr_of_sources": 2}}}
    """

    ignores_padding = True

    embedding_dimension: int = option(check=at_least(1), help="size of the vector of a bin")
    nr_of_sources: int = option(check=at_least(1), help="number of sources in the mixture")

    def check(self, ctx: LossPlanContext) -> None:
        """Check the numbers of features."""
        assert ctx.target is not None
        _need_vectors(self, ctx)
        output, target = ctx.output, ctx.target
        if target.sparse or target.dim is None or frame_axis(target) is None or target.rank != 3:
            raise ctx.error("the target %r needs features per frame, but is %s." % (ctx.target_name, target))
        if output.rank != 3 or output.batch_axis is None or frame_axis(output) is None:
            raise ctx.error("the output needs the axes batch, time and features, but is %s." % output)
        bins, rest = divmod(target.dim, self.nr_of_sources)
        if rest or output.dim != bins * self.embedding_dimension:
            raise ctx.error(
                "the target %r has %d features, for %s bins of %d sources; so the output needs %s features, but has %s."
                % (
                    ctx.target_name,
                    target.dim,
                    "%d / %d" % (target.dim, self.nr_of_sources) if rest else bins,
                    self.nr_of_sources,
                    "a multiple of embedding_dimension" if rest else bins * self.embedding_dimension,
                    output.dim,
                )
            )

    def value(self, ctx: LossContext) -> Any:
        """Sum the squares of three small matrices per sequence."""
        v, y = self._valid(ctx, ctx.output_value, ctx.output), self._valid(ctx, ctx.target_value, ctx.target)
        frames, target_frames = ctx.lens(ctx.output), ctx.lens(ctx.target)
        deps = ctx.require(
            tf.equal(frames, target_frames),
            "the output and the target differ in their lengths. Both must have the same number of frames.",
            frames_of_the_output=frames,
            frames_of_the_target=target_frames,
        )
        with tf.control_dependencies(deps):
            batch = tf.shape(v)[0]
            v = tf.reshape(v, [batch, -1, self.embedding_dimension])
            y = tf.reshape(tf.cast(y, v.dtype), [batch, -1, self.nr_of_sources])

            def square(a: Any, b: Any) -> Any:
                size = tf.minimum(tf.shape(a)[1], tf.shape(b)[1])
                return tf.reduce_sum(tf.matmul(a[:, :size], b[:, :size], transpose_a=True) ** 2)

            return square(v, v) - 2.0 * square(v, y) + square(y, y)

    def _valid(self, ctx: LossContext, x: Any, data: Any) -> Any:
        """Return [batch, time, features] with zeros in padded frames."""
        x, data = batch_major(x, data)
        mask = _frame_mask(ctx, data)
        return x if mask is None else tf.where(mask, x, tf.zeros_like(x))
