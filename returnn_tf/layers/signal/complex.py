"""Layers of complex numbers: conversion from and to alternating real and imaginary parts, and their projection."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.signal.features_last import FeaturesLastLayer, need_complex, need_real
from returnn_tf.ops.signal.complex import from_alternating, log_abs_product, to_alternating
from returnn_tf.tensor import Data


def _pairs(ctx: PlanContext, data: Data) -> int:
    """Return the number of complex numbers in a frame."""
    size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
    if size % 2:
        raise ctx.error("the source %s must have pairs of real and imaginary parts, not %d features." % (data, size))
    return size // 2


@register_layer("alternating_real_to_complex")
class AlternatingRealToComplexLayer(FeaturesLastLayer):
    """``y[i] = x[2 * i] + 1j * x[2 * i + 1]`` over the features.

    The output is [batch, others, features / 2], complex64 (complex128 of float64).

    No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "alternating_real_to_complex", "from": "data"}}
    """

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: half as many features, complex."""
        data = self.features_last(ctx)
        return self.with_features(ctx, data, _pairs(ctx, data), need_real(ctx, data))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one op."""
        return from_alternating(self.emit_features_last(ctx))


@register_layer("complex_to_alternating_real")
class ComplexToAlternatingRealLayer(FeaturesLastLayer):
    """``y[2 * i] = real(x[i])``, ``y[2 * i + 1] = imag(x[i])`` over the features.

    The output is [batch, others, 2 * features], float32 (float64 of complex128).

    No parameters. Lengths: unchanged.

    Example::

        network = {
            "spectrum": {"class": "alternating_real_to_complex", "from": "data"},
            "output": {"class": "complex_to_alternating_real", "from": "spectrum"}}
    """

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: twice as many features, real."""
        data = self.features_last(ctx)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        return self.with_features(ctx, data, 2 * size, need_complex(ctx, data))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit parts stacked."""
        return to_alternating(self.emit_features_last(ctx))


@register_layer("complex_linear_projection")
class ComplexLinearProjectionLayer(FeaturesLastLayer):
    """``y = log(abs(z W))`` with ``z[i] = x[2 * i] + 1j * x[2 * i + 1]`` (Variani et al. 2016).

    The absolute value is at least 1e-20. The output is [batch, others, nr_of_filters].

    Parameters: ``clp_kernel`` [2, features / 2, nr_of_filters], the real and the imaginary part of W.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "complex_linear_projection", "nr_of_filters": 3, "from": "data"}}
    """

    nr_of_filters: int = option(check=at_least(1), help="number of output features")
    clp_weights_init: Init = option("glorot_uniform", help="initialiser of the kernel")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: new features."""
        data = self.features_last(ctx)
        need_real(ctx, data)
        ctx.param("clp_kernel", (2, _pairs(ctx, data), self.nr_of_filters), self.clp_weights_init)
        return self.with_features(ctx, data, self.nr_of_filters)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit four products."""
        return log_abs_product(self.emit_features_last(ctx), ctx.param("clp_kernel"))
