"""The option ``initial_output``: what ``prev:x`` gives in the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from returnn_tf.layers.node import Node
from returnn_tf.layers.plan_context import PlanContext
from returnn_tf.layers.rec.loop_nodes import InitialOutput
from returnn_tf.network.checks import LayerError
from returnn_tf.network.parse import LayerSpec

if TYPE_CHECKING:
    from returnn_tf.network.loops.zone_builder import ZoneBuilder

_CONSTANTS = {"zeros": 0, "ones": 1}


def plan_initial_output(builder: "ZoneBuilder", spec: LayerSpec, node: Node) -> InitialOutput:
    """The initial output of a layer; "var" declares a parameter.

    :param builder: plans the zone of the layer
    :raises LayerError: labels without an initial output, or an unknown form
    """
    given: Any = spec.options.get("initial_output")
    state = getattr(node.layer, "initial_output_value", None)
    if given is None and state is not None:
        return InitialOutput(state=lambda ctx: state(type(ctx)(node, ctx.lowering)))
    if given is None:
        if node.output.sparse_dim is not None or node.output.dtype.startswith("int"):
            raise LayerError(
                "%s: 'prev:%s' needs the option 'initial_output' of this layer, since there is no natural first label. "
                "Give the label before the first step, e.g. 'initial_output': 0." % (spec.where, spec.name)
            )
        return InitialOutput()
    if isinstance(given, (bool, int, float)):
        return InitialOutput(constant=given)
    if isinstance(given, str):
        if given in _CONSTANTS:
            return InitialOutput(constant=_CONSTANTS[given])
        if given == "var":
            name = "init_%s_var" % spec.name
            if name not in node.params:
                ctx = PlanContext(node, builder)
                ctx.param(name, (ctx.need_feature(node.output, "the output"),), 0.0)
            return InitialOutput(param=(node, name))
        if given == "apply(0)":
            return InitialOutput(apply=node)
        return InitialOutput(node=builder.resolve(given, spec.where))
    raise LayerError(
        "%s: initial_output must be a number, 'zeros', 'ones', 'var', 'apply(0)' or a layer such as 'base:enc', not %r."
        % (spec.where, given)
    )
