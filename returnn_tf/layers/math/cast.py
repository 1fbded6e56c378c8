"""`cast`: another dtype."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.tensor import NUMERIC_DTYPES, Data
from returnn_tf.util.lazy_tf import tf


def is_int(dtype: str) -> bool:
    """Return whether entries can be indices."""
    return dtype.startswith(("int", "uint"))


@register_layer("cast")
class CastLayer(ConcatInputLayer):
    """``y = x`` in another dtype; floats are truncated towards zero on conversion to integers.

    Label indices stay label indices if they are cast to another integer type, else they become plain numbers.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "cast", "dtype": "float64", "from": "data"}}
    """

    dtype: str = option(choices=NUMERIC_DTYPES, help="e.g. 'int32' or 'float32'")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source with the new dtype."""
        data = self.input_template(ctx).replace(dtype=self.dtype)
        return data if is_int(self.dtype) else data.replace(sparse_dim=None, vocab=None)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op if the dtype is the same."""
        return tf.cast(self.emit_input(ctx), self.dtype)
