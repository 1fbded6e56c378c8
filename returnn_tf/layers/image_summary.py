"""`image_summary`: the identity, for configs which show a layer as an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from returnn_tf.layers.copy import CopyLayer
from returnn_tf.layers.options import option
from returnn_tf.layers.registry import register_layer
from returnn_tf.tensor import Data

if TYPE_CHECKING:
    from returnn_tf.layers.plan_context import PlanContext


@register_layer("image_summary")
class ImageSummaryLayer(CopyLayer):
    """``y = x``. No image is written. No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "image_summary", "from": "data"}}
    """

    max_outputs: int = option(3, help="number of images in a summary")

    def template(self, ctx: "PlanContext") -> Data:
        """That of the input."""
        if self.max_outputs < 1:
            raise ctx.error("max_outputs must be at least 1, got %d." % self.max_outputs)
        return super().template(ctx)
