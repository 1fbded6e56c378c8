"""`range`, `range_in_axis`, `range_from_length`: 0, 1, 2, ..."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.config.options import finite, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Layer, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.sequence.length import LengthLayer, axis_dim, given_source
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.tensor import NUMERIC_DTYPES, Data, Dim
from returnn_tf.tensor.data import default_time_axis
from returnn_tf.util.lazy_tf import tf


@register_layer("range")
class RangeLayer(Layer):
    """``start, start + delta, ...`` as long as it is below ``limit``.

    Lengths: one static axis, which is the feature axis unless sparse.

    Example::

        network = {"output": {"class": "range", "limit": 7, "start": 1, "delta": 2, "from": []}}
    """

    needs_sources = False
    limit: Union[int, float] = option(help="end of the range (exclusive)", check=finite)
    start: Union[int, float] = option(0, help="the first number", check=finite)
    delta: Union[int, float] = option(1, help="difference between neighbours", check=finite)
    dtype: Optional[str] = option(
        None, choices=(None, *NUMERIC_DTYPES), help="int32 by default, float32 if one of the numbers is a float"
    )
    sparse: bool = option(False, help="make the output label indices")
    out_spatial_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: one axis."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        if not self.delta:
            raise ctx.error("delta must not be 0.")
        numbers = (self.start, self.limit, self.delta)
        dtype = self.dtype or ("int32" if all(isinstance(n, int) for n in numbers) else ctx.float_dtype)
        size = max(0, math.ceil((self.limit - self.start) / self.delta))
        dim = ctx.bind(self.out_spatial_dim, ctx.new_spatial(size, "range"))
        labels = ctx.new_feature(math.ceil(self.limit), "%s:labels" % self.node.path) if self.sparse else None
        return with_feature_default(Data((dim,), dtype, sparse_dim=labels))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a constant of the graph."""
        data = ctx.output
        return tf.constant(self.start + self.delta * np.arange(data.dims[0].size or 0), data.dtype)


_ONE_AXIS = "the output has the one axis only, and layers such as combine broadcast it"


@register_layer("range_in_axis")
class RangeInAxisLayer(Layer):
    """``0, 1, ..., n - 1`` along an axis of the source; the output has only this axis.

    The axis may be any dim whose lengths are known, with or without a source, or "sparse_dim".
    Lengths: those of the axis.

    Example::

        network = {"output": {"class": "range_in_axis", "axis": "T", "from": "data"}}
    """

    needs_sources = False
    reads_only_lengths = True
    axis: AxisOption = option("T", help="the axis of the source, a dim with known lengths, or 'sparse_dim'")
    dtype: str = option("int32", choices=NUMERIC_DTYPES, help="e.g. 'int32' or 'float32'")
    sparse: bool = option(False, help="make the output indices into the axis")
    unbroadcast: bool = option(False, help="keep the other axes", unsupported=_ONE_AXIS)
    keepdims: bool = option(False, help="keep the other axes", unsupported=_ONE_AXIS)

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the axis is one of a source."""
        return not isinstance(options.get("axis"), Dim)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the one axis."""
        source = given_source(ctx, self.axis)
        dim = axis_dim(ctx, source, self.axis)
        is_feature = dim is source.feature_dim and not self.sparse
        data = Data(
            (dim,),
            self.dtype,
            feature_axis=0 if is_feature else None,
            time_axis=0 if dim is source.time_dim else default_time_axis([dim]),
            sparse_dim=dim if self.sparse else None,
        )
        return data if is_feature else with_feature_default(data)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one range op."""
        return tf.cast(tf.range(ctx.size(ctx.output.dims[0])), self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class RangeFromLengthPlan(LayerPlan):
    """The plan of `RangeFromLengthLayer`.

    :param defines: whether the axis is a new one
    """

    defines: bool


@register_layer("range_from_length")
class RangeFromLengthLayer(Planned[RangeFromLengthPlan]):
    """``0, 1, ..., n - 1`` along a new axis whose lengths are the values of the source.

    If the source is a `length` layer, the axis is the one whose lengths these are, the batch axis included.
    Lengths: the values of the source: one per sequence, one for all, or with a source [batch, time] one per frame.

    Example::

        network = {
            "len": {"class": "length", "from": "data"},
            "double": {"class": "eval", "eval": "source(0) * 2", "from": "len"},
            "output": {"class": "range_from_length", "from": "double"}}
    """

    reads_only_lengths = True  # the values are lengths
    axis: AxisOption = option("T", help="obsolete", inert="an output has the axes of its source")
    dtype: str = option("int32", choices=NUMERIC_DTYPES, help="e.g. 'int32' or 'float32'")
    sparse: bool = option(False, help="make the output indices into the new axis")
    out_spatial_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> RangeFromLengthPlan:
        """Infer the output: the new axis alone."""
        source = ctx.single_source()
        if not is_int(source.dtype):
            raise ctx.error("the source holds lengths, i.e. integers, but it is %s. Use e.g. a length layer." % source)
        layer = self.source.layer
        of = layer.plan.dim if isinstance(layer, LengthLayer) and not layer.add_time_axis else None
        known = ctx.new_spatial(None, "%s_input_len") if of is None or of.size is not None else of
        dim = known if known.is_batch else ctx.bind(self.out_spatial_dim, known)
        time_axis = None if dim.is_batch else 0
        out = Data((dim,), self.dtype, time_axis=time_axis, sparse_dim=dim if self.sparse else None)
        if known is not of:
            ctx.set_lengths_over(dim, source.dims)
        return RangeFromLengthPlan(out, defines=known is not of)

    def emit(self, ctx: EmitContext) -> Any:
        """Define the lengths, and emit a range as long as the longest sequence."""
        dim = ctx.output.dims[0]
        if self.plan.defines:
            ctx.define_lens_by(dim, self.source.output, ctx.source())
        return tf.cast(tf.range(ctx.size(dim)), self.dtype)
