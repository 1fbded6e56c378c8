"""`stft` and `istft`: the short-time Fourier transform of one channel, and its inverse."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Dims
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.spatial import SpatialAxes, bind_spatial, conv_dim, spatial_axes
from returnn_tf.layers.signal.features_last import need_complex, need_real, with_features
from returnn_tf.ops.dense.transposed_convolution import transposed_length
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.windows import axis_slice
from returnn_tf.ops.signal.stft import inverse_stft, stft
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class FourierPlan(LayerPlan):
    """The plan of `FourierLayer`.

    :param spatial: where the axis of samples or frames is, and what counts as batch
    """

    spatial: SpatialAxes


@dataclasses.dataclass(eq=False, repr=False)
class FourierLayer(ConcatInputLayer, Planned[FourierPlan]):
    """The options of both directions."""

    frame_shift: int = option(check=at_least(1), help="distance of the first samples of neighbouring frames")
    frame_size: int = option(check=at_least(1), help="number of samples in a frame")
    fft_size: Optional[int] = option(None, help="number of samples per Fourier transform (default: frame_size)")
    in_spatial_dims: Optional[Axes] = option(None, help="the axis to transform (default: the spatial one)")
    out_spatial_dims: Optional[Dims] = option(None, help="the dim of this axis in the output")
    use_time_mask: bool = option(False, help="treat what is after the end of a sequence as 0")

    @property
    def transform_size(self) -> int:
        """The number of samples per Fourier transform."""
        return self.frame_size if self.fft_size is None else self.fft_size

    def spatial(self, ctx: PlanContext) -> SpatialAxes:
        """Find the axis of samples or frames; an input without features gets one."""
        if self.transform_size < self.frame_size:
            raise ctx.error("fft_size is %d, less than the frame_size %d." % (self.transform_size, self.frame_size))
        data = self.input_template(ctx)
        if data.feature_axis is None and data.sparse_dim is None:
            data = data.with_axis(data.rank, ctx.new_feature(1), feature=True)
        return spatial_axes(ctx, data, self.in_spatial_dims, 1, "frame_size")

    def emit_op_form(self, ctx: EmitContext) -> Any:
        """Return the input as [N, samples or frames, features]."""
        x = self.emit_input(ctx)
        if self.input.feature_axis is None:
            x = tf.expand_dims(x, -1)
        return self.plan.spatial.to_op(ctx, x, use_time_mask=self.use_time_mask)


@register_layer("stft")
class StftLayer(FourierLayer):
    """The short-time Fourier transform: the spectrum of each frame of ``frame_size`` samples, with a Hann window.

    ``y[t, f] = sum over i of x[t * frame_shift + i] * window[i] * exp(-2j * pi * f * i / fft_size)``

    The source is one real channel, [B, T] or [B, T, 1]. The output is [batch, others, frames, fft_size // 2 + 1],
    complex64 (complex128 of float64); `multichannel_stft_layer` takes several channels.

    No parameters. Lengths: ``floor((n - frame_size) / frame_shift) + 1``, at least 0: complete frames only.

    Example::

        extern_data = {"data": {"shape": (None, 1)}}
        network = {"output": {"class": "stft", "frame_shift": 2, "frame_size": 3, "from": "data"}}
    """

    def template(self, ctx: PlanContext) -> FourierPlan:
        """Infer the output: batch and others, frames, frequencies."""
        spatial = self.spatial(ctx)
        data = spatial.data
        dtype = need_real(ctx, data)
        if data.dim != 1:
            raise ctx.error(
                "the source %s must have one channel. For several channels there is the class "
                "'multichannel_stft_layer'." % data
            )
        (dim,) = spatial.dims
        new = conv_dim(dim, self.frame_size, self.frame_shift, 1, "valid")
        out = spatial.template(bind_spatial(ctx, self.out_spatial_dims, [new], [dim])).replace(dtype=dtype)
        return FourierPlan(with_features(ctx, out, out.rank - 1, self.transform_size // 2 + 1), spatial)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit Fourier transforms of windowed frames."""
        x = self.emit_op_form(ctx)[..., 0]
        y = stft(x, size=self.frame_size, shift=self.frame_shift, fft_size=self.transform_size)
        return self.plan.spatial.from_op(ctx, y, ctx.output)


@register_layer("istft")
class InverseStftLayer(FourierLayer):
    """The signal with the short-time Fourier transform given by the source, with a Hann window (Griffin & Lim 1984).

    The frames are transformed back, windowed, and added where they overlap. It is the inverse of `stft` where frames
    overlap; samples that only one frame has, at both ends, are damped. The source is [B, T, fft_size // 2 + 1],
    complex; the output is [batch, others, samples, 1], float32 (float64 of complex128). Frames after the end of a
    sequence overlap its last ones, unless ``use_time_mask`` is set.

    No parameters. Lengths: ``n * frame_shift + max(frame_size - frame_shift, 0)``.

    Example::

        extern_data = {"data": {"shape": (None, 1)}}
        network = {
            "spectrum": {"class": "stft", "frame_shift": 2, "frame_size": 4, "from": "data"},
            "output": {
                "class": "istft", "frame_shift": 2, "frame_size": 4, "use_time_mask": True, "from": "spectrum"}}
    """

    def template(self, ctx: PlanContext) -> FourierPlan:
        """Infer the output: batch and others, samples, one channel."""
        spatial = self.spatial(ctx)
        data = spatial.data
        dtype = need_complex(ctx, data)
        if data.dim != self.transform_size // 2 + 1:
            raise ctx.error(
                "the source %s must have %d features, since fft_size is %d: fft_size // 2 + 1."
                % (data, self.transform_size // 2 + 1, self.transform_size)
            )
        (dim,) = spatial.dims
        new = transposed_length(dim, self.frame_size, self.frame_shift, "valid")
        out = spatial.template(bind_spatial(ctx, self.out_spatial_dims, [new], [dim])).replace(dtype=dtype)
        return FourierPlan(with_features(ctx, out, out.rank - 1, 1), spatial)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit inverse Fourier transforms, windows, overlap-add."""
        y = self.emit_op_form(ctx)
        y = inverse_stft(y, size=self.frame_size, shift=self.frame_shift, fft_size=self.transform_size)
        samples = ctx.size(ctx.output.dims[len(self.plan.spatial.lead)])
        missing = tf.maximum(samples - tf.shape(y)[1], 0)  # with a shift that is larger than the frames
        y = axis_slice(pad_axis(y, 1, 0, missing), 1, 0, samples)
        return self.plan.spatial.from_op(ctx, y[..., None], ctx.output)
