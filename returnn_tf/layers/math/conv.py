"""`conv`: convolution along one to three axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional, Union

from returnn_tf.config.options import between, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Dims, Padding
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.conv_params import ConvFilter, ConvParams
from returnn_tf.layers.shared.spatial import Window, bind_spatial, plan_window
from returnn_tf.ops.dense.convolution import convolution
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

Sizes = Union[int, list[int], tuple[int, ...]]
FilterSizes = Union[int, list[Union[int, Dim]], tuple[Union[int, Dim], ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class ConvPlan(LayerPlan):
    """The plan of `ConvLayer`.

    :param filter: where filter and bias come from
    :param window: the filter size, where it moves along and how
    """

    filter: ConvFilter
    window: Window


@register_layer("conv")
class ConvLayer(ConcatInputLayer, ConvParams, Planned[ConvPlan]):
    """``y[t] = activation(sum over k of x[t * stride + k * dilation - left] W[k] + bias)`` along 1 to 3 axes.

    The output has the axes [batch, others, spatial, features]; axes that are not in ``in_spatial_dims`` count as batch.
    Padding refers to the ends of the array: unless ``use_time_mask`` is set, frames after the end of a sequence are
    seen like all others. The outputs of a group see only the inputs of the same group; with as many groups as input
    features this is a depthwise convolution (Sifre & Mallat 2014).

    Parameters: ``W`` [filter..., in / groups, n_out], ``bias`` [n_out] (default only since behavior version 10).
    Lengths: padding "same" ``ceil(n / stride)``; "valid" ``ceil((n - (filter - 1) * dilation) / stride)``, at least 0;
    a number p adds p zeros at both ends and goes on as "valid". "same_static" is "same" with ``filter - 1`` zeros
    whatever the length is, ``(filter - stride) // 2`` of them in front. With strides, "same" has more or fewer in front
    by the length of the array, so that a sequence gets other values in a batch with another longest length: prefer
    "same_static".

    Example::

        network = {
            "output": {
                "class": "conv", "n_out": 5, "filter_size": 3, "padding": "same_static", "strides": 2, "from": "data"}}
    """

    filter_size: FilterSizes = option(help="filter size per axis; determines the number of axes")
    padding: Padding = option(help="'same', 'valid', 'same_static', a number or a pair of frames; or a list of these")
    strides: Sizes = option(1, help="strides of the filter, one number or one per axis")
    dilation_rate: Sizes = option(1, help="distance of the frames in the filter, one number or one per axis")
    groups: int = option(1, help="number of independent groups of features")
    in_spatial_dims: Optional[Axes] = option(
        None, help="axes to move along, one per axis of the filter (default: all spatial)"
    )
    out_spatial_dims: Optional[Dims] = option(None, help="the dims of these axes in the output")
    input_expand_dims: int = option(0, check=between(0, 3), help="number of spatial axes of size 1 to add")
    input_add_feature_dim: bool = option(False, help="make the features a spatial axis; adds a feature axis of size 1")
    input_split_feature_dim: Optional[int] = option(
        None, help="split the features into a spatial axis and this number of features"
    )
    auto_use_channel_first: Union[None, bool, str] = option(
        None, help="order of the axes for the kernel", inert="the fastest layout is chosen"
    )
    use_time_mask: bool = option(False, help="treat frames after the end of a sequence as 0")
    pad_seq_len_to_power: Optional[float] = option(
        None, help="pad the array to a power of this length", inert="one graph serves all lengths"
    )

    def template(self, ctx: PlanContext) -> ConvPlan:
        """Infer the output: batch and other axes, spatial axes, features."""
        data = self._expanded(ctx, self.input_template(ctx))
        window, dims = plan_window(
            ctx,
            data,
            self.in_spatial_dims,
            self.filter_size,
            self.strides,
            self.padding,
            self.dilation_rate,
            "filter_size",
        )
        out = ctx.out_feature()
        n_in, n_out = ctx.need_static(ctx.need_feature(data), "the feature axis"), ctx.need_static(out, "out_dim")
        if self.groups < 1 or n_in % self.groups or n_out % self.groups:
            raise ctx.error(
                "%d input and %d output features are not divisible by %d groups." % (n_in, n_out, self.groups)
            )
        with_bias = ctx.behavior_version >= 10 if self.with_bias is None else self.with_bias
        params = self.declare_params(ctx, "W", [*window.size, n_in // self.groups, n_out], n_out, with_bias)
        new = bind_spatial(ctx, self.out_spatial_dims, dims, window.axes.dims)
        return ConvPlan(window.axes.template(new, out), filter=params, window=window)

    def channel_axes(self) -> Mapping[str, int]:
        """Return the filter, if it is a parameter; its channels are the output."""
        return {} if self.filter is not None else {"W": len(self.plan.filter.shape) - 1}

    def multiplies_rounded(self, name: str) -> bool:
        """Return False: TensorFlow convolves floats."""
        return False

    def remark(self) -> str:
        """Warn if values depend on the longest sequence of the batch."""
        return self.plan.window.remark()

    def _expanded(self, ctx: PlanContext, data: Data) -> Data:
        """Expand the source by the axes that the options add."""
        if self.input_split_feature_dim:
            size = ctx.need_static(ctx.need_feature(data), "the feature axis")
            if size % self.input_split_feature_dim:
                raise ctx.error("%d features cannot be split by %d." % (size, self.input_split_feature_dim))
            assert data.feature_axis is not None
            split = ctx.new_spatial(size // self.input_split_feature_dim, "split-features")
            data = data.with_dim(data.feature_axis, ctx.new_feature(self.input_split_feature_dim))
            data = data.with_axis(data.feature_axis, split)  # type: ignore[arg-type]
        if self.input_add_feature_dim:
            ctx.need_feature(data)
            data = data.with_axis(data.rank, ctx.new_feature(1), feature=True)
        for _ in range(self.input_expand_dims):
            at = data.rank if data.feature_axis is None else data.feature_axis
            data = data.with_axis(at, ctx.new_spatial(1, "expanded"))
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one convolution; a reshape if several axes count as batch."""
        x = self.emit_input(ctx)
        window = self.plan.window
        data = window.axes.data
        if data is not self.input:
            x = tf.reshape(x, ctx.shape(data))
        y = convolution(
            window.axes.to_op(ctx, x, use_time_mask=self.use_time_mask),
            self.emit_filter(ctx, self.plan.filter),
            bias=self.emit_bias(ctx, self.plan.filter),
            strides=window.strides,
            dilations=window.dilations,
            groups=self.groups,
            padding=window.padding,
            train=ctx.train,
            product_dtype=ctx.product_dtype,
        )
        return self.emit_activation(ctx, window.axes.from_op(ctx, y, ctx.output))
