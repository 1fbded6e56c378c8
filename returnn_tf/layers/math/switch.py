"""`switch`: one of two sources per entry."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Callable, Union

from returnn_tf.config.option_types import Written
from returnn_tf.config.options import option
from returnn_tf.config.user_code import result_of_config
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import LayerOrConstant
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import common_layout
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SwitchPlan(LayerPlan):
    """The plan of `SwitchLayer`.

    :param layout: the axes of condition and branches together
    """

    layout: Data


@register_layer("switch")
class SwitchLayer(Planned[SwitchPlan]):
    """``y = true_from where condition else false_from``, per entry, with broadcasting. Both are computed.

    Lengths: those of the operand with most axes.

    Example::

        network = {
            "c": {"class": "compare", "kind": "greater", "value": 0.0, "from": "data"},
            "output": {"class": "switch", "condition": "c", "true_from": "data", "false_from": 0.0}}
    """

    needs_sources = False
    condition: Annotated[Any, Written(Union[str, bool, Callable[..., Any]], "layer | bool | function")] = option(
        help="layer with a bool per entry, or a bool, or a function giving a bool", refs=True
    )
    true_from: LayerOrConstant = option(help="layer, or a number", refs=True)
    false_from: LayerOrConstant = option(help="layer, or a number", refs=True)

    def template(self, ctx: PlanContext) -> SwitchPlan:
        """Infer the output: the common layout of condition and branches; the dtype is that of the branches."""
        branches = [b for b in (self.true_from, self.false_from) if isinstance(b, Node)]
        if isinstance(self.condition, Node) and self.condition.output.dtype != "bool":
            raise ctx.error("condition %r must be bool, but it is %s." % (self.condition.path, self.condition.output))
        # While a loop is planned, the value of its previous step may still be unknown: it fits everywhere.
        branches = [b for b in branches if not b.output.unknown] or branches
        if not isinstance(self.condition, Node):
            chosen = self.true_from if self._static_condition() else self.false_from
            branches = [chosen] if isinstance(chosen, Node) else branches[:1]
        if len({b.output.dtype for b in branches}) > 1:
            raise ctx.error(
                "true_from is %s, but false_from is %s. Cast one of them." % (branches[0].output, branches[1].output)
            )
        operands = [n.output for n in [*branches, self.condition] if isinstance(n, Node)]
        if not isinstance(self.condition, Node):
            operands = [chosen.output] if isinstance(chosen, Node) else []
        layout = common_layout(operands, allow_broadcast_all=True) if operands else Data((), ctx.float_dtype)
        data = layout
        if branches:
            first = branches[0].output
            data = data.replace(dtype=first.dtype, sparse_dim=first.sparse_dim, vocab=None)
            if first.sparse_dim is not None:
                data = data.replace(feature_axis=None)
        else:
            numbers = (self.true_from, self.false_from)
            flags = all(isinstance(n, bool) for n in numbers)
            ints = all(isinstance(n, int) for n in numbers)
            data = data.replace(dtype="bool" if flags else "int32" if ints else ctx.float_dtype)
        self._check_numbers(ctx, data.dtype)
        return SwitchPlan(data, layout)

    def _check_numbers(self, ctx: PlanContext, dtype: str) -> None:
        """Check that branches that are numbers have a value in the dtype of the output."""
        for name, value in (("true_from", self.true_from), ("false_from", self.false_from)):
            if isinstance(value, Node):
                continue
            fraction = isinstance(value, float) and not value.is_integer()
            if (dtype == "bool") != isinstance(value, bool) or (fraction and dtype.startswith(("int", "uint"))):
                raise ctx.error("%s is %r, but the other branch is %s. Cast that one." % (name, value, dtype))

    def _static_condition(self) -> bool:
        return bool(result_of_config("condition", self.condition) if callable(self.condition) else self.condition)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit `tf.where` with broadcasting."""

        def operand(value: Any) -> Any:
            if isinstance(value, Node):
                return ctx.broadcast(value, self.plan.layout)
            return tf.cast(value, ctx.output.dtype)

        if not isinstance(self.condition, Node):
            return operand(self.true_from if self._static_condition() else self.false_from)
        return tf.where(operand(self.condition), operand(self.true_from), operand(self.false_from))
