"""`decide_keep_beam`: marks the end of a search that keeps its hypotheses."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data


@register_layer("decide_keep_beam")
class DecideKeepBeamLayer(Layer):
    """``y = x``, with all hypotheses of a search and their scores; `decide` keeps only the best one.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "decide_keep_beam", "from": "data"}}
    """

    keeps_features = True

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the source."""
        ctx.forward_aux()
        return ctx.source()
