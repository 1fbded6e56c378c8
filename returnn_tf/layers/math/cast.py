"""`cast`: another dtype."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
)  # fmt: skip


def check_dtype(ctx: PlanContext, dtype: str) -> str:
    """Check a dtype, and return it.

    :raises ConfigError: if it is none that tensors can be cast to
    """
    if dtype not in _DTYPES:
        raise ctx.error("unknown dtype %r. Use one of: %s." % (dtype, ", ".join(_DTYPES)))
    return dtype


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

    dtype: str = option(help="e.g. 'int32' or 'float32'")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source with the new dtype."""
        data = self.input_template(ctx).replace(dtype=check_dtype(ctx, self.dtype))
        return data if is_int(self.dtype) else data.replace(sparse_dim=None, vocab=None)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op if the dtype is the same."""
        return tf.cast(self.emit_input(ctx), self.dtype)
