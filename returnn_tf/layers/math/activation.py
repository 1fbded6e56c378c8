"""`activation` and `gating`: functions of one source."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import PRE_ACTIVATION, PreActivation
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.option_types import Activation
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.linear import feature_last
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.numbers import need_numbers
from returnn_tf.ops.activations import (
    changes_dtype,
    check_activation,
    get_activation,
    is_named,
    is_of_complex,
    is_over_features,
    needed_type,
    needs_sign,
)
from returnn_tf.ops.after_product import bias_and_activation, gated
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.tensor import Data


@register_layer("activation")
class ActivationLayer(ConcatInputLayer):
    """``y = f(x)``.

    softmax and log_softmax run over the feature axis and move it to the end; all others keep the order of the axes.
    Complex numbers need 'abs', 'angle', 'real' or 'imag' first, which give real ones.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "activation", "activation": "relu", "from": "data"}}
    """

    keeps_features = True
    joins_features = True
    activation: Activation = option(help="name of the function, e.g. 'relu', or a function")
    opts: Optional[dict[str, Any]] = option(None, help="keyword arguments of the function")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: same axes; bool for the logical functions, real numbers for the parts of complex ones."""
        check_activation(self.activation)
        data = self.input_template(ctx)
        if data.dtype.startswith("complex") and not is_of_complex(self.activation):
            raise ctx.error("%r needs real numbers, but the source is %s. Take 'abs' before." % (self.activation, data))
        if is_over_features(self.activation) or (data.sparse and isinstance(self.activation, str)):
            ctx.need_feature(data)
            data = feature_last(data)
        _check_dtype(ctx, data, self.activation)
        return data.replace(dtype=changes_dtype(self.activation, data.dtype))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the function, with the feature axis last if it runs over that."""
        x = self.emit_input(ctx)
        axis = self.input.feature_axis
        if is_over_features(self.activation) and axis is not None:
            x = move_axis(x, self.input.rank, axis, self.input.rank - 1)
        ctx.set_aux(self.node, PRE_ACTIVATION, PreActivation(x, self.activation))
        if ctx.train and not self.opts:
            return bias_and_activation(x, None, self.activation)
        return get_activation(self.activation, self.opts)(x)

    def gradient_reads_sources(self) -> bool:
        """Return whether the function is one of the user; gradients of others need the output."""
        return not is_named(self.activation)

    def works_by_frame(self) -> bool:
        """Return whether the function is a known one."""
        return is_named(self.activation) and not self.opts and self.drops_by_frame()


def _check_dtype(ctx: PlanContext, data: Data, activation: Any) -> None:
    needs = needed_type(activation)
    if needs == "bools" and data.dtype != "bool" and not data.unknown:
        raise ctx.error("activation %r is for bools, not %s. Use 'compare' to make them." % (activation, data))
    if data.dtype.startswith("uint") and needs_sign(activation):
        raise ctx.error("activation %r makes negative numbers, which %s has not. Cast it before." % (activation, data))
    if needs in ("floats", "numbers"):
        need_numbers(ctx, data, "activation %r" % (activation,), floats=needs == "floats")


@register_layer("gating")
class GatingLayer(ConcatInputLayer):
    """``y = f(a) * g(b)`` with a and b the two halves of the feature axis (gated linear units, Dauphin et al. 2017).

    Lengths: unchanged. The feature dim is halved.

    Example::

        network = {"output": {"class": "gating", "activation": "tanh", "from": "data"}}
    """

    takes_ints = False
    activation: Activation = option(help="name of f, or None")
    gate_activation: Activation = option("sigmoid", help="name of g")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: half of the feature axis."""
        check_activation(self.activation)
        check_activation(self.gate_activation)
        data = self.input_template(ctx)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        if size % 2:
            raise ctx.error("the feature dim must be even to be halved, but the source has %d." % size)
        if self.n_out is not None and self.n_out != size // 2:
            raise ctx.error(
                "n_out is %d, but half of the %d features is %d. Omit n_out." % (self.n_out, size, size // 2)
            )
        axis = data.feature_axis
        assert axis is not None
        return data.with_feature(axis, ctx.bind(self.out_dim, ctx.new_feature(size // 2)))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the functions of the halves and their product."""
        x, axis = self.emit_input(ctx), self.input.feature_axis
        assert axis is not None
        functions = self.activation, self.gate_activation
        return gated(x, axis, *functions, train=ctx.train)

    def works_by_frame(self) -> bool:
        """Return whether the functions are known ones."""
        return is_named(self.activation) and is_named(self.gate_activation) and self.drops_by_frame()
