"""`rand_int`: random whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config.options import LayerOrNumber, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.option_types import Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.random_shape import check_scalar, random_dims, scalar, sizes, with_steps
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@register_layer("rand_int")
class RandIntLayer(Layer):
    """Whole numbers from ``minval`` to below ``maxval``, all equally probable; others in each step of the training.

    In a loop, each step has numbers of its own.
    Parameters: none. Lengths: those of the dims in ``shape``.

    Example::

        network = {
            "feature": {"class": "rand_int", "shape": (), "minval": 1, "maxval": 2, "seed": 1},
            "output": {"class": "gather", "position": "feature", "axis": "F", "from": "data"}}
    """

    needs_sources = False
    has_memory = True  # in the step of a loop: the step decides about the numbers
    computes_all_steps = True

    shape: Shape = option(help="dims, or sizes of new axes, of which the last is the feature axis")
    maxval: LayerOrNumber = option(help="number or scalar layer, excluded", refs=True)
    minval: LayerOrNumber = option(0, help="number or scalar layer", refs=True)
    dtype: str = option("int32", choices=("int32", "int64"), help="dtype of the numbers")
    sparse_dim: Optional[Dim] = option(None, help="the numbers are indices of these labels")
    seed: Optional[int] = option(None, help="for other numbers")

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return True: each step of a loop has numbers of its own."""
        return True

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the dims of the shape; in a loop, the steps in front."""
        for name in ("minval", "maxval"):
            value = getattr(self, name)
            check_scalar(ctx, name, value)
            if isinstance(value, float) and not value.is_integer():
                raise ctx.error("%s is %s, but the numbers are %s." % (name, value, self.dtype))
        numbers = isinstance(self.minval, (int, float)) and isinstance(self.maxval, (int, float))
        if numbers and self.minval >= self.maxval:
            raise ctx.error(
                "there is no number from minval %s to maxval %s, which is excluded." % (self.minval, self.maxval)
            )
        dims = random_dims(ctx, self.shape, last_is_feature=self.sparse_dim is None)
        return with_steps(ctx, Data.from_dims(dims, dtype=self.dtype, sparse_dim=self.sparse_dim))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the numbers."""
        name = "" if self.seed is None else "seed %d" % self.seed
        low, high = (scalar(ctx, value, self.dtype) for value in (self.minval, self.maxval))
        return tf.random.stateless_uniform(sizes(ctx), ctx.seed(name), low, high, self.dtype)
