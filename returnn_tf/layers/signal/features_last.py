"""The base of layers that replace the features of every frame: batch first, features last."""

from __future__ import annotations

import dataclasses
from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.out_type import check_out_type
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data

#: dtype of real numbers -> dtype of complex numbers with the same precision.
COMPLEX = {"float32": "complex64", "float64": "complex128"}
#: dtype of complex numbers -> dtype of real numbers with the same precision.
REAL = {value: key for key, value in COMPLEX.items()}


@dataclasses.dataclass(eq=False, repr=False)
class FeaturesLastLayer(ConcatInputLayer):
    """A layer whose output is [batch, others, new features]."""

    def features_last(self, ctx: PlanContext) -> Data:
        """Return the template of the input in the order [batch, others, features]."""
        data = self.input_template(ctx)
        ctx.need_feature(data)
        return data.permuted(self.order()).replace(vocab=None)

    def order(self) -> list[int]:
        """Return the axes of the input in this order."""
        first = [] if self.input.batch_axis is None else [self.input.batch_axis]
        last = [] if self.input.feature_axis is None else [self.input.feature_axis]
        return first + [a for a in range(self.input.rank) if a not in first + last] + last

    def emit_features_last(self, ctx: EmitContext) -> Any:
        """Return the input in this order."""
        return transpose(self.emit_input(ctx), self.order())

    def with_features(self, ctx: PlanContext, data: Data, size: int, dtype: str = "") -> Data:
        """Return the output template: the features at the end replaced.

        :param size: number of new features
        :param dtype: if it changes
        """
        data = data.replace(dtype=dtype or data.dtype)
        return with_features(ctx, data, data.rank - 1, size)


def with_features(ctx: PlanContext, data: Data, axis: int, size: int) -> Data:
    """Return a template with a feature axis of a size that other options than n_out determine.

    :raises ConfigError: n_out, out_dim or out_type say something else
    """
    layer = ctx.node.layer
    if layer.n_out not in (None, size):
        raise ctx.error("n_out is %s, but there are %d output features. Omit n_out." % (layer.n_out, size))
    data = data.with_dim(axis, ctx.bind(layer.out_dim, ctx.new_feature(size)))
    time = None if data.time_axis == axis else data.time_axis
    return check_out_type(ctx, data.replace(feature_axis=axis, time_axis=time))


def need_real(ctx: PlanContext, data: Data) -> str:
    """Return the dtype of complex numbers with the precision of real data.

    :raises ConfigError: the data is neither float32 nor float64
    """
    if data.dtype not in COMPLEX:
        raise ctx.error(
            "needs a real signal of float32 or float64, but the source is %s. Cast it by a layer of class 'cast'; of "
            "complex numbers take a part by 'eval', e.g. 'eval': 'tf.abs(source(0))'." % data
        )
    return COMPLEX[data.dtype]


def need_complex(ctx: PlanContext, data: Data) -> str:
    """Return the dtype of real numbers with the precision of complex data.

    :raises ConfigError: the data is not complex
    """
    if data.dtype not in REAL:
        raise ctx.error(
            "needs complex numbers, but the source is %s. They are the output of e.g. 'stft' or "
            "'alternating_real_to_complex'." % data
        )
    return REAL[data.dtype]
