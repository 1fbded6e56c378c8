"""`batch_norm` as a layer."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.batch_norm import BatchNormOptions, declare_batch_norm, emit_batch_norm
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.tensor import Data


@register_layer("batch_norm")
class BatchNormLayer(ConcatInputLayer, BatchNormOptions):
    """``y = (x - mean) / sqrt(variance + epsilon) * gamma + beta`` per feature (Ioffe & Szegedy 2015).

    In training mean and (biased) variance are those of all frames of the batch, with ``masked_time`` only of the frames
    inside the sequences; otherwise the running statistics, which move towards those of the batch:
    ``mean += momentum * (batch_mean - mean)``. Before behavior version 12 they also move outside training, and
    the moved ones are used. The option ``batch_norm`` of any layer (True or a dict of these options) does the same
    with the output of the layer.

    Parameters: ``batch_norm/v2_mean``, ``v2_variance`` (both not trained), ``v2_gamma``, ``v2_beta``, all [features];
    with param_version 1 without "v2_", of the rank of the data with size 1 on the other axes; with param_version 0
    the same with ``<layer>_<layer>_output_`` in front of "mean" etc.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "batch_norm", "masked_time": True, "from": "data"}}
    """

    joins_features = True
    normalizes_batch = True

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        data = self.input_template(ctx)
        declare_batch_norm(ctx, data, self)
        return data.replace(vocab=None)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit moments in training, and one multiply-add."""
        return emit_batch_norm(ctx, self.emit_input(ctx), self.input)
