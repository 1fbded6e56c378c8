"""Filter, bias and activation of `conv` and `transposed_conv`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, declared_options, option
from returnn_tf.graph.aux_values import PRE_ACTIVATION, PreActivation
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.option_types import Activation, AxisOrder, Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.activations import check_activation, get_activation, may_reduce
from returnn_tf.ops.after_product import bias_and_activation
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.mixed_precision import full
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ConvFilter:
    """Where a convolution gets its filter and bias from.

    :param name: of the parameter with the filter
    :param shape: of the filter as a parameter
    :param has_bias: whether there is a bias
    :param order: of the axes of the layer that gives the filter; None: a parameter does
    """

    name: str
    shape: tuple[int, ...]
    has_bias: bool
    order: Optional[tuple[int, ...]]


@dataclasses.dataclass(eq=False, repr=False)
class ConvParams:
    """Options and parameters; mixed into a layer."""

    with_bias: Optional[bool] = option(None, help="whether to add a bias (default: True, see the parameters above)")
    activation: Activation = option(None, help="name of the activation function, or None")
    forward_weights_init: Init = option("glorot_uniform", help="initialiser of the filter")
    bias_init: Init = option(0.0, help="initialiser of the bias")
    filter: Optional[LayerRef] = option(None, help="layer with the filter, instead of a parameter", refs=True)
    filter_perm: Optional[AxisOrder] = option(
        None, help="order of its axes: list, or dict from the required axis to the given one"
    )
    bias: Optional[LayerRef] = option(None, help="layer with the bias, instead of a parameter", refs=True)

    def declare_params(
        self, ctx: PlanContext, name: str, shape: Sequence[int], n_out: int, with_bias: bool, *, filter_rank: int = 0
    ) -> ConvFilter:
        """Declare the parameters, or check the layers that replace them.

        :param name: of the filter
        :param shape: of the filter as a parameter
        :param filter_rank: axes of size 1 after the first one are not in the filter layer, which has this rank
        """
        check_activation(self.activation)
        has_bias = with_bias or self.bias is not None
        order = None
        if not with_bias and not declared_options(type(self))["bias_init"].is_default(self.bias_init):
            ctx.log_inert("bias_init", "it needs with_bias")
        if isinstance(self.filter, Node):
            order = tuple(self._order_of(ctx, self.filter))
            given = [self.filter.output.static_shape[i] for i in order]
            expected = [shape[0], *shape[-(filter_rank - 1) :]] if filter_rank else list(shape)
            if given != expected:
                raise ctx.error(
                    "the filter %r must have the sizes %s in this order, it has %s."
                    % (self.filter.path, expected, given)
                )
        else:
            ctx.param(name, shape, self.forward_weights_init)
        if isinstance(self.bias, Node):
            if self.bias.output.static_shape != (n_out,):
                raise ctx.error(
                    "the bias %r must have the size %d, it is %s." % (self.bias.path, n_out, self.bias.output)
                )
        elif has_bias:
            ctx.param("bias", (n_out,), self.bias_init)
        return ConvFilter(name, tuple(shape), has_bias, order)

    def _order_of(self, ctx: PlanContext, node: Node) -> list[int]:
        data, order = node.output, list(range(node.output.rank))
        if isinstance(self.filter_perm, Mapping):
            for target, source in self.filter_perm.items():
                order[ctx.axis(data, target)] = ctx.axis(data, source)
        elif self.filter_perm is not None:
            order = ctx.each_axis(data, self.filter_perm)
        if sorted(order) != list(range(data.rank)):
            raise ctx.error("filter_perm %r is not a permutation of the axes of %s." % (self.filter_perm, data))
        return order

    def emit_filter(self, ctx: EmitContext, planned: ConvFilter) -> Any:
        """Return the filter in the shape of the parameter."""
        if planned.order is None or not isinstance(self.filter, Node):
            return ctx.param(planned.name)
        return tf.reshape(transpose(ctx.value(self.filter), planned.order), planned.shape)

    def emit_bias(self, ctx: EmitContext, planned: ConvFilter) -> Optional[Any]:
        """Return the bias, [n_out], or None."""
        if isinstance(self.bias, Node):
            return ctx.value(self.bias)
        return ctx.param("bias") if planned.has_bias else None

    def emit_activation(self, ctx: EmitContext, y: Any) -> Any:
        """Apply the activation."""
        if self.activation is None:
            return y
        ctx.set_aux(ctx.node, PRE_ACTIVATION, PreActivation(full(y, ctx.product_dtype), self.activation))
        y = y if may_reduce(self.activation) else full(y, ctx.product_dtype)
        return bias_and_activation(y, None, self.activation) if ctx.train else get_activation(self.activation)(y)
