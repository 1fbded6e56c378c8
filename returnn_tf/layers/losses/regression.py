"""Losses on vectors: `mse`, `l1`, `mean_l1`, `cos`."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.loss import LossContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.losses.framewise import Frames, FramewiseLoss
from returnn_tf.util.lazy_tf import tf


class VectorLoss(FramewiseLoss):
    """Compares the output vector of every frame with the target vector; labels are taken as one-hot vectors."""

    def frame_values(self, ctx: LossContext, frames: Frames) -> Any:
        """Compute the value of every frame; see `compare`."""
        output = frames.arrange(ctx.output_value)
        target = frames.target
        if frames.sparse:
            target = tf.one_hot(target, output.shape[-1], dtype=output.dtype)
        return self.compare(output, tf.cast(target, output.dtype))

    def compare(self, output: Any, target: Any) -> Any:
        """Compare [frames, features] with [frames, features]: [frames]."""
        raise AssertionError("%s has no compare()" % type(self).__name__)


@register_loss("mse")
class MeanSquaredErrorLoss(VectorLoss):
    """``mean_k (y[k] - t[k]) ** 2``, summed over the frames. Error: as for "ce".

    Example::

        extern_data = {"data": {"dim": 4}, "target": {"dim": 3}}
        network = {"output": {
            "class": "linear", "activation": None, "from": "data", "loss": "mse", "target": "target"}}
    """

    def compare(self, output: Any, target: Any) -> Any:
        """Compute the mean over the features."""
        return tf.reduce_mean(tf.math.squared_difference(output, target), axis=-1)


@register_loss("l1")
class L1Loss(VectorLoss):
    """``sum_k |y[k] - t[k]|``, summed over the frames. Error: as for "ce".

    Example::

        extern_data = {"data": {"dim": 4}, "target": {"dim": 3}}
        network = {"output": {
            "class": "linear", "activation": None, "from": "data", "loss": "l1", "target": "target"}}
    """

    def compare(self, output: Any, target: Any) -> Any:
        """Sum over the features."""
        return tf.reduce_sum(tf.abs(output - target), axis=-1)


@register_loss("mean_l1")
class MeanL1Loss(VectorLoss):
    """``mean_k |y[k] - t[k]|``, summed over the frames. Error: as for "ce".

    Example::

        extern_data = {"data": {"dim": 4}, "target": {"dim": 3}}
        network = {"output": {
            "class": "linear", "activation": None, "from": "data", "loss": "mean_l1", "target": "target"}}
    """

    def compare(self, output: Any, target: Any) -> Any:
        """Compute the mean over the features."""
        return tf.reduce_mean(tf.abs(output - target), axis=-1)


@register_loss("cos")
class CosineLoss(VectorLoss):
    """``1 - y.t / (|y| |t|)``, the cosine distance, summed over the frames; 1 for a vector of zeros.

    Error: as for "ce".

    Example::

        extern_data = {"data": {"dim": 4}, "target": {"dim": 3}}
        network = {"output": {
            "class": "linear", "activation": None, "from": "data", "loss": "cos", "target": "target"}}
    """

    def compare(self, output: Any, target: Any) -> Any:
        """Compute the distance; the norms are bounded from below, so that padding and zeros have gradient 0."""
        output = tf.math.l2_normalize(output, axis=-1, epsilon=1e-12)
        target = tf.math.l2_normalize(target, axis=-1, epsilon=1e-12)
        return 1.0 - tf.reduce_sum(output * target, axis=-1)
