"""`framewise_statistics`: a placeholder for configs with statistics of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from returnn_tf.layers.base import Layer
from returnn_tf.layers.options import option
from returnn_tf.layers.registry import register_layer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext


@register_layer("framewise_statistics")
class FramewiseStatisticsLayer(Layer):
    """The int32 scalar 0. No statistics are collected. No parameters. Lengths: none.

    Example::

        network = {
            "output": {"class": "softmax", "from": "data", "loss": "ce"},
            "stats": {"class": "framewise_statistics", "sil_label_idx": 0, "from": "output", "is_output_layer": True}}
    """

    sil_label_idx: int = option(help="label of silence")
    histogram_num_bins: int = option(20, help="number of bins of a histogram")

    def template(self, ctx: "PlanContext") -> Data:
        """A scalar."""
        ctx.single_source()
        return Data.from_dims([], dtype="int32")

    def emit(self, ctx: "EmitContext") -> Any:
        """A constant."""
        return tf.constant(0, tf.int32)
