"""Small layers of speech enhancement: noise estimates and masks."""

from __future__ import annotations

import dataclasses
from typing import Any

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.signal.features_last import COMPLEX, with_features
from returnn_tf.ops.frames.windows import axis_slice
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import common_layout
from returnn_tf.util.lazy_tf import tf


@register_layer("first_t_frames_noise_estimator")
class FirstFramesNoiseEstimatorLayer(ConcatInputLayer):
    """``y[t] = mean over the first nr_of_frames frames of x``, the same for all frames t.

    Frames after the end of a short sequence count as well, as the array has them.

    No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "first_t_frames_noise_estimator", "nr_of_frames": 4, "from": "data"}}
    """

    nr_of_frames: int = option(help="number of frames; -1 for all in the array")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: like the source."""
        data = self.input_template(ctx)
        if self.nr_of_frames != -1 and self.nr_of_frames < 1:
            raise ctx.error("nr_of_frames must be at least 1, or -1 for all, got %d." % self.nr_of_frames)
        if not data.dtype.startswith(("float", "bfloat", "complex")):
            raise ctx.error("the source is %s, but a mean needs floats. Cast it." % data)
        if data.time_axis is None:
            raise ctx.error("the source %s has no time axis." % data)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        return with_features(ctx, data.replace(vocab=None), data.feature_axis, size)  # type: ignore[arg-type]

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a mean, repeated."""
        x, axis = self.emit_input(ctx), self.input.time_axis
        assert axis is not None
        first = x if self.nr_of_frames == -1 else axis_slice(x, axis, 0, self.nr_of_frames)
        return tf.broadcast_to(tf.reduce_mean(first, axis=axis, keepdims=True), tf.shape(x))


@dataclasses.dataclass(frozen=True, eq=False)
class SignalMaskingPlan(LayerPlan):
    """The plan of `SignalMaskingLayer`.

    :param layout: the axes of signal and mask together
    """

    layout: Data


@register_layer("signal_masking")
class SignalMaskingLayer(Planned[SignalMaskingPlan]):
    """``y = signal * mask``, elementwise.

    The mask is real and may lack axes of the signal.

    No parameters. Lengths: those of the signal.

    Example::

        network = {
            "mask": {"class": "linear", "activation": "sigmoid", "n_out": 4, "from": "data"},
            "output": {"class": "signal_masking", "signal": "data", "mask": "mask"}}
    """

    needs_sources = False
    signal: LayerRef = option(help="layer with the signal", refs=True)
    mask: LayerRef = option(help="layer with the factors", refs=True)

    def template(self, ctx: PlanContext) -> SignalMaskingPlan:
        """Infer the output: the axes of both."""
        if self.sources:
            raise ctx.error("takes no sources: 'signal' and 'mask' name its layers. Omit 'from'.")
        signal, mask = self._node(ctx, "signal"), self._node(ctx, "mask")
        dtype = signal.output.dtype
        if mask.output.dtype != dtype and COMPLEX.get(mask.output.dtype) != dtype:
            raise ctx.error("the signal is %s, so the mask cannot be %s. Cast it." % (dtype, mask.output.dtype))
        layout = common_layout([signal.output, mask.output], allow_broadcast_all=ctx.behavior_version < 4)
        data = layout.replace(dtype=dtype, vocab=None)
        if data.feature_axis is None:
            return SignalMaskingPlan(data, layout)
        size = ctx.need_static(ctx.need_feature(data), "the features")
        return SignalMaskingPlan(with_features(ctx, data, data.feature_axis, size), layout)

    def _node(self, ctx: PlanContext, name: str) -> Node:
        node = getattr(self, name)
        if not isinstance(node, Node):
            raise ctx.error("the option %r must name a layer, not %r." % (name, node))
        if node.output.sparse or not node.output.dtype.startswith(("float", "bfloat", "complex")):
            raise ctx.error("%s %r must be real or complex numbers, not %s." % (name, node.path, node.output))
        return node

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one product."""
        signal, mask = (ctx.broadcast(node, self.plan.layout) for node in (self.signal, self.mask))
        return signal * tf.cast(mask, signal.dtype)
