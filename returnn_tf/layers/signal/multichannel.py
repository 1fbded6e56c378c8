"""Fourier transforms of several channels, which are side by side in the features."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.spatial import SpatialAxes, conv_dim
from returnn_tf.layers.signal.features_last import need_real, with_features
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import merge_axes, transpose
from returnn_tf.ops.signal.stft import stft
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.filters import WINDOWS
from returnn_tf.util.lazy_tf import tf

#: What stands after the signal for frames that are longer than the first ones.
_ALMOST_NOTHING = 1e-7


@dataclasses.dataclass(frozen=True, eq=False)
class SpectraPlan(LayerPlan):
    """The plan of `MultichannelFourierLayer`.

    :param sizes: pairs (samples per frame, samples per Fourier transform)
    :param spatial: where the axis of samples is, and what counts as batch
    """

    sizes: Sequence[tuple[int, int]]
    spatial: SpatialAxes


@dataclasses.dataclass(eq=False, repr=False)
class MultichannelFourierLayer(ConcatInputLayer, Planned[SpectraPlan]):
    """The spectra of all channels, with one or several sizes of frames, side by side in the features."""

    frame_shift: int = option(check=at_least(1), help="distance of the first samples of neighbouring frames")
    window: str = option("hanning", choices=WINDOWS, help="the window function")
    use_rfft: bool = option(True, help="only the frequencies up to half the sampling rate; False: all fft_size")
    nr_of_channels: int = option(1, check=at_least(1), help="number of channels")
    pad_last_frame: bool = option(False, help="fill up the last frame with zeros instead of leaving it out")

    def spectra(self, ctx: PlanContext, frame_sizes: Sequence[int], fft_sizes: Sequence[int]) -> SpectraPlan:
        """Infer the output: batch and others, frames, spectra."""
        for frame_size, fft_size in zip(frame_sizes, fft_sizes):
            if not 1 <= frame_size <= fft_size:
                raise ctx.error("a frame of %d samples does not fit an fft_size of %d." % (frame_size, fft_size))
        data = self.input_template(ctx)
        if data.feature_axis is None and data.sparse_dim is None:
            data = data.with_axis(data.rank, ctx.new_feature(1), feature=True)
        dtype = need_real(ctx, data)
        if ctx.need_static(ctx.need_feature(data), "the feature axis of the source") != self.nr_of_channels:
            raise ctx.error("nr_of_channels is %d, but the source is %s." % (self.nr_of_channels, data))
        spatial = _along_time(ctx, data)
        bins = sum(size // 2 + 1 if self.use_rfft else size for size in fft_sizes)
        out = spatial.template([self._frames(ctx, spatial.dims[0], frame_sizes[0])]).replace(dtype=dtype)
        out = with_features(ctx, out, out.rank - 1, bins * self.nr_of_channels)
        return SpectraPlan(out, list(zip(frame_sizes, fft_sizes)), spatial)

    def _frames(self, ctx: PlanContext, dim: Dim, frame_size: int) -> Dim:
        if not self.pad_last_frame:
            return conv_dim(dim, frame_size, self.frame_shift, 1, "valid")
        size = None if dim.size is None else -(-dim.size // self.frame_shift)
        return ctx.new_spatial(size, "frames")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit Fourier transforms of windowed frames for each size."""
        x = self.emit_input(ctx)
        if self.input.feature_axis is None:
            x = tf.expand_dims(x, -1)
        x = transpose(self.plan.spatial.to_op(ctx, x, use_time_mask=False), [0, 2, 1])  # [N, channels, samples]
        count = self._count(ctx, tf.shape(x)[2])
        parts = []
        for frame_size, fft_size in self.plan.sizes:
            y = pad_axis(x, 2, 0, max(frame_size - self.plan.sizes[0][0], 0), value=_ALMOST_NOTHING)
            if self.pad_last_frame:
                y = pad_axis(y, 2, 0, frame_size)  # more than needed
            y = stft(
                y,
                size=frame_size,
                shift=self.frame_shift,
                fft_size=fft_size,
                window=self.window,
                one_sided=self.use_rfft,
            )
            parts.append(merge_axes(transpose(y[:, :, :count], [0, 2, 1, 3]), 2, 2)[0])
        return self.plan.spatial.from_op(ctx, tf.concat(parts, axis=-1), ctx.output)

    def _count(self, ctx: EmitContext, samples: Any) -> Any:
        """Return the number of frames of the array, and define their lengths where no expression does."""
        dim = ctx.output.dims[len(self.plan.spatial.lead)]
        if dim.size is None and self.pad_last_frame:
            (old,) = self.plan.spatial.dims
            lens = -(-(ctx.lens(old) - self.plan.sizes[0][0]) // self.frame_shift) + 1
            ctx.define_lens(dim, tf.maximum(lens, 0), size=-(-samples // self.frame_shift))
        return ctx.size(dim)


def _along_time(ctx: PlanContext, data: Data) -> SpatialAxes:
    """Return the time axis, or the only spatial one, with all others as batch."""
    axis = data.time_axis
    if axis is None and len(data.spatial_axes) == 1:
        axis = data.spatial_axes[0]
    if axis is None:
        raise ctx.error("the source %s has no time axis with the samples." % data)
    batch = [] if data.batch_axis is None else [data.batch_axis]
    lead = batch + [i for i in range(data.rank) if i not in (*batch, axis, data.feature_axis)]
    return SpatialAxes(data, lead, [axis])


@register_layer("multichannel_stft_layer")
class MultichannelStftLayer(MultichannelFourierLayer):
    """The short-time Fourier transform of each feature, see `stft`; the spectra of the channels are concatenated.

    The source is [B, T, nr_of_channels], the output [batch, others, frames, bins * nr_of_channels], complex64
    (complex128 of float64), with ``fft_size // 2 + 1`` bins, without ``use_rfft`` fft_size.

    No parameters. Lengths: ``floor((n - frame_size) / frame_shift) + 1``, with ``pad_last_frame``
    ``ceil((n - frame_size) / frame_shift) + 1``; at least 0.

    Example::

        network = {"output": {
            "class": "multichannel_stft_layer", "frame_shift": 2, "frame_size": 3, "fft_size": 4, "nr_of_channels": 4,
            "from": "data"}}
    """

    frame_size: int = option(help="number of samples in a frame")
    fft_size: int = option(help="number of samples per Fourier transform")

    def template(self, ctx: PlanContext) -> SpectraPlan:
        """Infer the output: batch and others, frames, spectra of all channels."""
        return self.spectra(ctx, [self.frame_size], [self.fft_size])


@register_layer("multichannel_multiresolution_stft_layer")
class MultichannelMultiresolutionStftLayer(MultichannelFourierLayer):
    """Short-time Fourier transforms with several sizes of frames, all with the same shift (Toledano et al. 2018).

    The spectra are concatenated: those of all channels with the first size, then with the second, and so on. There are
    as many frames as the first size gives; for longer ones the signal goes on with 1e-7 after the end of the array. See
    `multichannel_stft_layer`.

    No parameters. Lengths: as in `multichannel_stft_layer` with the first entry of ``frame_sizes``.

    Example::

        network = {"output": {
            "class": "multichannel_multiresolution_stft_layer", "frame_shift": 2, "frame_sizes": [3, 2],
            "fft_sizes": [4, 2], "nr_of_channels": 4, "from": "data"}}
    """

    frame_sizes: list[int] = option(help="numbers of samples in a frame")
    fft_sizes: list[int] = option(help="numbers of samples per Fourier transform, one for each of frame_sizes")

    def template(self, ctx: PlanContext) -> SpectraPlan:
        """Infer the output: batch and others, frames, spectra of all sizes and channels."""
        if not self.frame_sizes or len(self.frame_sizes) != len(self.fft_sizes):
            raise ctx.error(
                "frame_sizes and fft_sizes must have one entry for each resolution, got %r and %r."
                % (self.frame_sizes, self.fft_sizes)
            )
        return self.spectra(ctx, self.frame_sizes, self.fft_sizes)
