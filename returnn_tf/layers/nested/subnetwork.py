"""`subnetwork`: a network as a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.copy import joined_source
from returnn_tf.layers.shared.concat_input import ConcatInputLayer, concat_template
from returnn_tf.layers.shared.nested import base_references
from returnn_tf.tensor import Data


@register_layer("subnetwork")
class SubnetworkLayer(ConcatInputLayer):
    """A nested network whose layer "output" is the output. Inside, ``data`` is the concatenated input.

    ``base:x`` inside is layer x of the outer network, and ``prev:x`` in a loop the inner layer x in the previous step.
    Other layers are reached from outside as ``<name>/<layer>``, also by layers that this network uses.
    Parameters: those of the inner layers, ``<name>/<layer>/...``; the names don't depend on the depth of the graph.
    Losses inside are reported as ``<name>/<layer>``.
    Lengths: those of the inner network.

    Example::

        network = {"output": {"class": "subnetwork", "from": "data", "subnetwork": {
            "h": {"class": "linear", "activation": "relu", "n_out": 4, "from": "data"},
            "output": {"class": "linear", "activation": None, "n_out": 2, "from": "h"}}}}
    """

    needs_sources = False
    steps_with_loop = True
    inner_network = "subnetwork"
    subnetwork: dict[str, Any] = option(help="the nested network", network=True)
    concat_sources: bool = option(
        True, help="False: the sources are data:0, data:1, ... and data:<layer name>; data is the first"
    )
    load_on_init: Union[None, str, dict[str, Any], Callable[..., Any]] = option(
        None,
        help="checkpoint to load the parameters from at the start: its path, a dict of the options of an entry in "
        "preload_from_files with params_prefix (default: the scope of the layer) and load_if_prefix, or a function "
        "without arguments that returns one of these",
    )

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the outer layers that inner layers refer to by ``base:``."""
        yield from base_references(options.get("subnetwork"))

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the outer layers of which inner layers use parameters."""
        yield from base_references(options.get("subnetwork"), of_params=True)

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the inner output."""
        inner = ctx.node.passes_on = ctx.inner_network()
        return inner.output

    def network_inputs(self, ctx: PlanContext) -> dict[str, Node]:
        """Return the sources: joined as "data", or one by one."""
        if not self.sources:
            return {}
        if not self.concat_sources:
            if self.dropout or self.in_dim is not None:
                raise ctx.error(
                    "dropout and in_dim are for the concatenated input, but concat_sources is False. Use a layer with "
                    "dropout as the source instead."
                )
            inputs = {}
            around = ctx.node.path.rpartition("/")[0]
            for i, node in enumerate(self.sources):
                inputs[str(i)] = node
                inputs[node.path.rpartition("/")[2].replace("data:", "")] = node
                if node.path.startswith(around + "/" if around else ""):
                    inputs[node.path[len(around) :].lstrip("/")] = node
            inputs["data"] = self.sources[0]
            return inputs
        if len(self.sources) == 1 and not self.dropout and self.in_dim is None:
            return {"data": self.source}
        concat_template(ctx, self.sources)
        return {"data": joined_source(ctx, self)}

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return an inner layer."""
        return ctx.planner.nested_node(ctx.node, name)

    def sub_names(self) -> Sequence[str]:
        """Return the names of the inner layers."""
        return list(self.subnetwork)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit nothing: the inner layers were emitted as part of the plan."""
        inner = self.node.passes_on
        assert inner is not None
        ctx.forward_aux(inner)
        return ctx.value(inner)


#: Options with a network of layers, where ``base:`` refers to the enclosing network.
