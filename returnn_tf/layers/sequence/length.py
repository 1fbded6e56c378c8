"""`length`: sequence lengths as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import NUMERIC_DTYPES, Data, Dim, batch_dim
from returnn_tf.tensor.data import default_time_axis
from returnn_tf.util.lazy_tf import tf


def given_source(ctx: PlanContext, axis: Any) -> Data:
    """Return the template of the source, which may be omitted where the axis is a dim."""
    return Data((), "int32") if isinstance(axis, Dim) and not ctx.node.sources else ctx.single_source()


def axis_dim(ctx: PlanContext, source: Data, desc: Any) -> Dim:
    """Return the dim that an axis of a source, "sparse_dim", or a dim with known lengths denotes.

    :raises ConfigError: no such axis, or the lengths of the dim are unknown
    """
    if isinstance(desc, str) and desc.lower() == "sparse_dim":
        if source.sparse_dim is None:
            raise ctx.error("axis 'sparse_dim' needs a source with labels, got %s." % source)
        desc = source.sparse_dim
    if not isinstance(desc, Dim) or ctx.has_axis(source, desc):
        return source.dims[ctx.axis(source, desc)]
    ctx.depend_on_dim(desc)
    return desc


@dataclasses.dataclass(frozen=True, eq=False)
class LengthPlan(LayerPlan):
    """The plan of `LengthLayer`.

    :param dim: the dim whose lengths are output; read by `range_from_length`
    """

    dim: Dim


@register_layer("length")
class LengthLayer(Planned[LengthPlan]):
    """The lengths of an axis: one number per sequence; a scalar if the axis is static or the batch axis.

    An axis whose lengths vary with the frames of another one (see `range_from_length`, `slice_nd`) has one per frame.

    The axis may be any dim whose lengths are known, with or without a source, or "sparse_dim".
    With sparse, the numbers are indices into the axis (or its end).
    Lengths: none; with add_time_axis there is a time axis of size 1.

    Example::

        network = {"output": {"class": "length", "axis": "T", "from": "data"}}
    """

    needs_sources = False
    axis: AxisOption = option("T", help="the axis whose lengths to output, a dim, or 'sparse_dim'")
    add_time_axis: bool = option(False, help="add a time axis of size 1")
    dtype: str = option("int32", choices=NUMERIC_DTYPES, help="e.g. 'int32' or 'float32'")
    sparse: bool = option(False, help="make the output indices into the axis")

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the axis is one of a source."""
        return not isinstance(options.get("axis"), Dim)

    def template(self, ctx: PlanContext) -> LengthPlan:
        """Infer the output: [batch], or the axes that the lengths vary with, for a dynamic axis; else a scalar."""
        source = given_source(ctx, self.axis)
        dim = axis_dim(ctx, source, self.axis)
        dims = [source.dims[source.batch_axis] if source.batch_axis is not None else batch_dim]
        over = ctx.lengths_over(dim)
        if over is not None:  # in the step of a loop those of this step
            axes = [source.axis_of_steps(d) for d in over]
            dims = [d if a is None else source.dims[a] for d, a in zip(over, axes) if a is not None or not d.is_loop]
        if not dim.is_dynamic():
            dims = []
        if self.add_time_axis:
            dims.append(ctx.new_spatial(1, "time"))
        time_axis = len(dims) - 1 if self.add_time_axis else default_time_axis(dims)
        out = Data(tuple(dims), self.dtype, time_axis=time_axis, sparse_dim=dim if self.sparse else None)
        return LengthPlan(out, dim)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op but the cast, usually."""
        dim, data = self.plan.dim, ctx.output
        if dim.is_dynamic() and ctx.differs_by_frame(dim):
            lens = ctx.lens_by_frame(dim, data)
        elif dim.is_dynamic():
            lens = ctx.lens(dim)
            if lens.shape.rank == 0:
                lens = tf.fill([ctx.size(data.dims[0])], lens)
        else:
            lens = tf.convert_to_tensor(ctx.size(dim))
        lens = tf.cast(lens, self.dtype)
        return tf.expand_dims(lens, -1) if self.add_time_axis else lens
