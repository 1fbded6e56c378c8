"""`constant`: a fixed value."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import shown
from returnn_tf.config.options import LayerRefs, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Constant, Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.tensor import Data, Dim, DimKind, batch_dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ConstantPlan(LayerPlan):
    """The plan of `ConstantLayer`.

    :param array: the value
    """

    array: NDArray[Any]


@register_layer("constant")
class ConstantLayer(Planned[ConstantPlan]):
    """``y = value``.

    Lengths: those of the dims in ``shape``.

    Example::

        network = {
            "two": {"class": "constant", "value": 2.0, "from": []},
            "output": {"class": "combine", "kind": "mul", "from": ["data", "two"]}}
    """

    needs_sources = False
    value: Constant = option(0.0, help="a number, bool, string or numpy array")
    shape: Optional[Shape] = option(None, help="dims or sizes; a scalar value is repeated to fill it")
    dtype: Optional[str] = option(None, help="default: that of the array, or int32, float32, bool")
    with_batch_dim: bool = option(False, help="add a batch axis")
    sparse_dim: Optional[Dim] = option(None, help="the values are indices of these labels")
    feature_dim: Optional[Dim] = option(None, help="which dim of the shape is the feature dim")
    shape_deps: LayerRefs = option((), help="layers with the dynamic dims of the shape", refs=True)

    @property
    def initializer(self) -> Optional[NDArray[Any]]:
        """Return the initial value of a variable with this content."""
        return self.plan.array if isinstance(self.node.found, ConstantPlan) else None

    def template(self, ctx: PlanContext) -> ConstantPlan:
        """Infer the output: the dims of ``shape``, or static ones as the value has them."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        array = self._as_array(ctx)
        dims = self._dims(ctx, array.shape)
        if self.with_batch_dim and not any(d.is_batch for d in dims):
            dims.insert(0, batch_dim)
        for dim in dims:
            ctx.depend_on_dim(dim)
        data = Data.from_dims(dims, dtype=array.dtype.name, sparse_dim=self.sparse_dim)
        if array.dtype.kind in "OSU":
            data = data.replace(dtype="string")
        if self.feature_dim is not None:
            data = data.replace(feature_axis=ctx.axis(data, self.feature_dim))
        else:
            data = with_feature_default(data)
        return ConstantPlan(data, array)

    def _as_array(self, ctx: PlanContext) -> NDArray[Any]:
        try:
            array = np.asarray(self.value)
        except ValueError as exc:  # lists of different lengths, or nested too deeply
            raise ctx.error("the value %s is no array: %s." % (shown(self.value), exc)) from None
        if array.dtype.kind == "O":
            raise ctx.error("value must be a number, bool, string or numpy array, got %s." % shown(self.value))
        if not isinstance(self.value, (np.ndarray, np.generic)):
            array = array.astype({"i": "int32", "f": ctx.float_dtype, "b": "bool"}.get(array.dtype.kind, array.dtype))
        try:
            return array if self.dtype is None else array.astype(self.dtype)
        except (TypeError, ValueError) as exc:
            raise ctx.error("the value %s does not fit dtype %r: %s." % (shown(self.value), self.dtype, exc)) from None

    def _dims(self, ctx: PlanContext, sizes: tuple[int, ...]) -> list[Dim]:
        if self.shape is None:
            return [self._new_dim(i, size) for i, size in enumerate(sizes)]
        dims = [d if isinstance(d, Dim) else self._new_dim(i, d) for i, d in enumerate(self.shape)]
        fitting = [d for d in dims if not d.is_batch] if self.with_batch_dim else dims
        if sizes and tuple(d.size for d in fitting) != sizes:
            raise ctx.error(
                "the value has the shape %s, but the option 'shape' says [%s]. They must agree, or the value must be a "
                "number." % (sizes, ", ".join(map(str, dims)))
            )
        return dims

    def _new_dim(self, axis: int, size: int) -> Dim:
        return Dim(DimKind.SPATIAL, size, "%s_const:static:%d" % (self.node.path.rpartition("/")[2], axis), auto=True)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a constant, broadcast to the shape if that has more axes."""
        data = ctx.output
        value = tf.constant(self.plan.array, data.dtype)
        if value.shape.rank == data.rank and (data.rank or not data.dims):
            return value
        return tf.broadcast_to(value, tf.stack(ctx.shape(data)))
