"""The value of a layer before the first step of a loop, as the layer itself uses it: the option ``initial_output``."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

_CONSTANTS = {"zeros": 0, "ones": 1}

#: Values of the option that do not name a layer.
INITIAL_KEYWORDS = (*_CONSTANTS, "var")


@dataclasses.dataclass(frozen=True)
class InitialValue:
    """Exactly one of a constant, a parameter and a layer.

    :param param: name as in `PlanContext.param`
    """

    constant: Any = None
    param: Optional[str] = None
    node: Optional[Node] = None

    def emit(self, ctx: EmitContext, data: Data) -> Any:
        """Emit a tensor that broadcasts against the layout of ``data``, in its dtype."""
        if self.param is not None:
            value = ctx.param(self.param)
            return tf.reshape(value, [-1 if i == data.feature_axis else 1 for i in range(data.rank)])
        if self.node is not None:
            return tf.cast(ctx.broadcast(self.node, data), data.dtype)
        return tf.cast(self.constant, data.dtype)


def plan_initial_value(ctx: PlanContext, given: Any, data: Data) -> Optional[InitialValue]:
    """Plan the value before the first step; "var" declares a parameter.

    :param given: the option, with a layer as its node; None: zeros
    :param data: template of one step
    :return: None for an unknown form
    :raises ConfigError: a layer of the same step, which has no value before the first one
    """
    if given is None:
        return InitialValue(constant=0)
    if isinstance(given, Node):
        if (given in ctx.planner.planned_nodes and ctx.in_step) or (
            ctx.loop_dim is not None and ctx.loop_dim in given.output.dims
        ):
            raise ctx.error(
                "initial_output: %r has no value before the first step, as it is computed in the loop. Name a layer "
                "outside, e.g. 'base:encoder'." % given.path
            )
        return InitialValue(node=given)
    if isinstance(given, (bool, int, float)):
        return InitialValue(constant=given)
    if given == "var":
        name = "init_%s_var" % ctx.node.path.rpartition("/")[2]
        ctx.param(name, (ctx.need_feature(data, "the output"),), 0.0)
        return InitialValue(param=name)
    if isinstance(given, str) and given in _CONSTANTS:
        return InitialValue(constant=_CONSTANTS[given])
    return None
