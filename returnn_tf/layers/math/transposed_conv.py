"""`transposed_conv`: convolution that lengthens sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Dims, NumberPerAxis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.conv_params import ConvFilter, ConvParams
from returnn_tf.layers.shared.spatial import SpatialAxes, bind_spatial, per_axis, spatial_axes
from returnn_tf.ops.dense.transposed_convolution import transposed_convolution, transposed_length
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf

Sizes = Union[int, list[int], tuple[int, ...]]
FilterSizes = Union[int, list[Union[int, Dim]], tuple[Union[int, Dim], ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class TransposedConvPlan(LayerPlan):
    """The plan of `TransposedConvLayer`.

    :param filter: where filter and bias come from
    :param spatial: where the axes are that the filter moves along
    :param strides: per axis
    :param remove: frames to cut at both ends, per axis
    :param extra: frames to add at the end, per axis; None: by the padding
    """

    filter: ConvFilter
    spatial: SpatialAxes
    strides: Sequence[int]
    remove: Sequence[int]
    extra: Sequence[Optional[int]]


@register_layer("transposed_conv")
class TransposedConvLayer(ConcatInputLayer, ConvParams, Planned[TransposedConvPlan]):
    """Transposed convolution (Zeiler et al. 2010): every frame is multiplied by the filter and added to the output.

    Without padding, output frame ``t * stride + k`` gets ``x[t] W[k]``; padding "same" cuts the output to
    ``n * stride`` frames. The output has the axes [batch, others, spatial, features]. What frames after the end of a
    sequence add to its last output frames is there unless ``use_time_mask`` is set.

    Parameters: ``W_native_transposed_conv`` [filter..., n_out, in], with one axis [filter, 1, n_out, in]; ``bias``
    [n_out]. A ``filter`` layer has the axes [filter..., n_out, in].
    Lengths: "same" ``n * stride``, "valid" ``n * stride + max(filter - stride, 0)``; minus ``2 * remove_padding``. With
    ``output_padding`` p: ``(n - 1) * stride + filter + p``, with "same" less ``2 * floor(filter / 2)``.

    Example::

        network = {
            "output": {"class": "transposed_conv", "filter_size": (3,), "strides": 2, "n_out": 5, "from": "data"}}
    """

    reduces_precision = True
    filter_size: FilterSizes = option(help="filter size per axis; determines the number of axes")
    strides: Optional[Sizes] = option(None, help="factor of the length, one or one per axis (default: filter_size)")
    padding: str = option("same", help="'same' or 'valid'")
    remove_padding: NumberPerAxis = option(0, help="frames to cut at both ends, one number or one per axis")
    output_padding: Optional[NumberPerAxis] = option(
        None, help="exact number of additional frames at the end, one number or one per axis"
    )
    in_spatial_dims: Optional[Axes] = option(
        None, help="axes to move along, one per axis of the filter (default: all spatial)"
    )
    out_spatial_dims: Optional[Dims] = option(None, help="the dims of these axes in the output")
    use_time_mask: bool = option(False, help="treat frames after the end of a sequence as 0")

    def template(self, ctx: PlanContext) -> TransposedConvPlan:
        """Infer the output: batch and other axes, spatial axes, features."""
        count = 1 if isinstance(self.filter_size, int) else len(self.filter_size)
        if not 1 <= count <= 3:
            raise ctx.error("filter_size must have 1 to 3 entries, got %r." % (self.filter_size,))
        if self.padding.lower() not in ("same", "valid"):
            raise ctx.error("padding must be 'same' or 'valid', not %r." % self.padding)
        spatial = spatial_axes(ctx, self.input_template(ctx), self.in_spatial_dims, count, "filter_size")
        size = per_axis(ctx, "filter_size", self.filter_size, count)
        strides = per_axis(ctx, "strides", size if self.strides is None else self.strides, count)
        remove = [v or 0 for v in self._numbers(ctx, "remove_padding", self.remove_padding, count)]
        extra = self._numbers(ctx, "output_padding", self.output_padding, count)
        dims = [
            transposed_length(d, k, s, self.padding.lower(), p) - 2 * r
            for d, k, s, p, r in zip(spatial.dims, size, strides, extra, remove)
        ]
        out = ctx.out_feature()
        n_in = ctx.need_static(ctx.need_feature(spatial.data), "the feature axis of the source")
        n_out = ctx.need_static(out, "out_dim")
        shape = [*size, *([1] if count == 1 else []), n_out, n_in]
        with_bias = True if self.with_bias is None else self.with_bias
        params = self.declare_params(
            ctx, "W_native_transposed_conv", shape, n_out, with_bias, filter_rank=3 if count == 1 else 0
        )
        return TransposedConvPlan(
            spatial.template(bind_spatial(ctx, self.out_spatial_dims, dims, spatial.dims), out),
            filter=params,
            spatial=spatial,
            strides=strides,
            remove=remove,
            extra=extra,
        )

    def _numbers(self, ctx: PlanContext, name: str, value: Any, count: int) -> list[Optional[int]]:
        values = list(value) if isinstance(value, (list, tuple)) else [value] * count
        if len(values) != count or not all(v is None or (isinstance(v, int) and v >= 0) for v in values):
            raise ctx.error("%s must be a number or one for each of the %d axes, got %r." % (name, count, value))
        return values

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one transposed convolution, cut at the ends."""
        w = self.emit_filter(ctx, self.plan.filter)
        y = transposed_convolution(
            self.plan.spatial.to_op(ctx, self.emit_input(ctx), use_time_mask=self.use_time_mask),
            w[:, 0] if len(self.plan.strides) == 1 else w,
            strides=self.plan.strides,
            padding=self.padding.lower(),
            output_padding=self.plan.extra,
            remove_padding=self.plan.remove,
        )
        y, bias = self.plan.spatial.from_op(ctx, y, ctx.output), self.emit_bias(ctx, self.plan.filter)
        return self.emit_activation(ctx, y if bias is None else tf.nn.bias_add(y, bias))
