"""`source`: the data fed to the network."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data


@register_layer("source")
class SourceLayer(Layer):
    """The data of one key of `extern_data`. ``"data"`` and ``"data:<key>"`` in ``from`` create such layers implicitly.

    Lengths: those of the data.

    Example::

        network = {"output": {"class": "source", "data_key": "data", "from": []}}
    """

    needs_sources = False
    data_key: str = option("data", help="key of extern_data")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template as declared in `extern_data`."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        if ctx.node.extern_key is None:
            inner = ctx.node.passes_on = ctx.depend(ctx.planner.extern_node(self.data_key))
            return inner.output
        return ctx.node.output

    def emit(self, ctx: EmitContext) -> Any:
        """Return the fed tensor."""
        assert self.node.passes_on is not None
        return ctx.value(self.node.passes_on)
