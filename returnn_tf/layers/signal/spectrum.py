"""`dct`, `mel_filterbank`: linear maps of the features with fixed weights."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.signal.features_last import FeaturesLastLayer, need_real
from returnn_tf.tensor import Data
from returnn_tf.util.filters import mel_filterbank
from returnn_tf.util.lazy_tf import tf


@register_layer("dct")
class DctLayer(FeaturesLastLayer):
    """The discrete cosine transform of the features; type 2 gives ``y[k] = 2 sum over i x[i] cos(pi k (2i+1) / 2n)``.

    The output is [batch, others, features].

    No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "dct", "norm": "ortho", "from": "data"}}
    """

    type: int = option(2, choices=(1, 2, 3, 4), help="the type of the transform")
    n: Optional[int] = option(
        None, check=at_least(1), help="cut the features, or fill them up with zeros, to this number"
    )
    norm: Optional[str] = option(None, choices=(None, "ortho"), help="'ortho' for an orthonormal transform")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: as many features, or n."""
        data = self.features_last(ctx)
        need_real(ctx, data)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        new = size if self.n is None else self.n
        if self.type == 1 and (self.norm is not None or new < 2):
            raise ctx.error("type 1 is not orthonormal, and needs at least 2 features. Use type 2.")
        return self.with_features(ctx, data, new)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a Fourier transform."""
        return tf.signal.dct(self.emit_features_last(ctx), type=self.type, n=self.n, norm=self.norm)


@register_layer("mel_filterbank")
class MelFilterbankLayer(FeaturesLastLayer):
    """Weighted sums of the bins of a spectrum, with triangular filters that are equidistant in mel.

    The pitch in mel is ``1125 * ln(1 + f / 700)``. Each filter rises from the centre of the previous one to 1 at its
    own, and falls to the centre of the next one; the centres lie between f_min and f_max. The output is
    [batch, others, nr_of_filters].

    No parameters. Lengths: unchanged.

    Example::

        extern_data = {"data": {"dim": 9}}
        network = {
            "output": {
                "class": "mel_filterbank", "sampling_rate": 8000, "fft_size": 16, "nr_of_filters": 3, "from": "data"}}
    """

    sampling_rate: float = option(16000, check=at_least(1), help="in Hz")
    fft_size: int = option(1024, check=at_least(2), help="samples per Fourier transform: twice the number of bins - 1")
    nr_of_filters: int = option(80, check=at_least(1), help="number of filters")
    f_min: Optional[float] = option(None, check=at_least(0), help="where the first filter begins, in Hz (default: 0)")
    f_max: Optional[float] = option(
        None, check=at_least(0), help="where the last filter ends, in Hz (default: half the sampling rate)"
    )

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: one feature per filter."""
        data = self.features_last(ctx)
        need_real(ctx, data)
        low, high = self._range()
        if low >= high:
            raise ctx.error("f_min must be below f_max, but they are %g and %g Hz." % (low, high))
        if data.dim != self.fft_size // 2 + 1:
            raise ctx.error(
                "the source %s must have %d features, since fft_size is %d: fft_size // 2 + 1."
                % (data, self.fft_size // 2 + 1, self.fft_size)
            )
        return self.with_features(ctx, data, self.nr_of_filters)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one product."""
        x = self.emit_features_last(ctx)
        low, high = self._range()
        filters = mel_filterbank(self.sampling_rate, self.fft_size, self.nr_of_filters, fmin=low, fmax=high)
        return tf.tensordot(x, tf.constant(filters, x.dtype), 1)

    def _range(self) -> tuple[float, float]:
        return self.f_min or 0.0, self.f_max or self.sampling_rate / 2
