"""`segment_input`, `unsegment_input`: a window from each frame on as a separate sequence, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shape.flatten import PackedBatch, packed_batch
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.signal.features_last import with_features
from returnn_tf.ops.frames.packing import frame_indices, unpack
from returnn_tf.ops.frames.shape import merge_axes, transpose
from returnn_tf.ops.signal.segments import cut_segments, join_segments
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


class SegmentFrames(Dim):
    """The frames of the windows that begin at the frames of a dim; each ends with its sequence at the latest."""

    __slots__ = ("of", "window")

    def __init__(self, of: Dim, window: int) -> None:
        super().__init__(DimKind.SPATIAL, None, "segment(%s)" % of)
        self.of, self.window = of, window


_segments: WeakValueDictionary[tuple[int, int], SegmentFrames] = WeakValueDictionary()


def segment_frames(of: Dim, window: int) -> SegmentFrames:
    """Return the dim of such windows, always the same object, so that layers with the same windows agree."""
    found = _segments.get((id(of), window))
    if found is None:
        found = _segments[id(of), window] = SegmentFrames(of, window)
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentsPlan(LayerPlan):
    """The plan of `SegmentsLayer`.

    :param order: of the axes of the source: [batch, time, others]
    :param frames: the dim whose frames begin segments
    """

    order: Sequence[int]
    frames: Dim


@dataclasses.dataclass(eq=False, repr=False)
class SegmentsLayer(ConcatInputLayer, Planned[SegmentsPlan]):
    """A layer with one sequence for each frame of the source, in the batch axis."""

    window: int = option(15, check=at_least(1), help="most frames in a segment")

    def segments(self, ctx: PlanContext, frames_of: Any = None) -> SegmentsPlan:
        """Infer the template of the source with its segments: [segments, window, others].

        :param frames_of: function of the time dim: the dim whose frames begin segments, if it is another one
        """
        data = self.input_template(ctx)
        if data.batch_axis is None or data.time_axis is None:
            raise ctx.error("needs a source with batch and time axis, got %s." % data)
        front = [data.batch_axis, data.time_axis]
        order = front + [a for a in range(data.rank) if a not in front]
        data = data.permuted(order)
        frames = data.dims[1] if frames_of is None else frames_of(data.dims[1])
        packed = packed_batch(data.dims[0], frames, batch_major=True)
        dims = (packed, segment_frames(frames, self.window), *data.dims[2:])
        return SegmentsPlan(data.replace(dims=dims, time_axis=1, beam=None, vocab=None), order, frames)

    def source_classes(self, ctx: PlanContext, data: Data) -> int:
        """Return the number of classes of a source of labels [batch, time].

        :raises ConfigError: the source is no sequence of labels
        """
        if data.rank != 2 or not data.dtype.startswith(("int", "uint")):
            raise ctx.error("needs a source of labels, [batch, time], got %s." % self.input)
        return 0 if data.sparse_dim is None else data.sparse_dim.size or 0

    def cut(self, ctx: EmitContext, x: Any) -> tuple[Any, Any]:
        """Return the segments of a tensor [batch, time, ...] and their lengths, which are defined as well."""
        batch = self.input.dims[self.plan.order[0]]
        frames = Data((batch, self.plan.frames), "bool")
        starts = frame_indices(ctx.seq_mask_by_batch(frames, 1))
        lens = ctx.lens(self.plan.frames)
        left = (tf.gather(lens, starts[:, 0]) if lens.shape.rank else lens) - starts[:, 1]
        lens = tf.minimum(left, self.window)
        ctx.define_size(packed_batch(batch, self.plan.frames, batch_major=True), tf.shape(starts)[0])
        ctx.define_lens(segment_frames(self.plan.frames, self.window), lens, size=self.window)
        return cut_segments(x, starts, self.window), lens


@register_layer("segment_input")
class SegmentInputLayer(SegmentsLayer):
    """``y[s, i] = x[b, t + i]``: for frame t of sequence b a sequence s with the frames from t on, ``window`` at most.

    The output is [segments, window, others], with the segments of a sequence next to each other in the batch axis.

    No parameters. Lengths: ``min(window, n - t)``.

    Example::

        network = {
            "segments": {"class": "segment_input", "window": 3, "from": "data"},
            "scores": {"class": "rec", "unit": "lstm", "n_out": 2, "from": "segments"},
            "output": {"class": "unsegment_input", "from": "scores"}}
    """

    def template(self, ctx: PlanContext) -> SegmentsPlan:
        """Infer the output: segments, frames, others."""
        return self.segments(ctx)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather."""
        return self.cut(ctx, transpose(self.emit_input(ctx), self.plan.order))[0]


@dataclasses.dataclass(frozen=True, eq=False)
class UnsegmentInputPlan(LayerPlan):
    """The plan of `UnsegmentInputLayer`.

    :param packed: the batch axis of the segments
    :param order: of the axes of the input: [segments, window, features]
    """

    packed: PackedBatch
    order: Sequence[Any]


@register_layer("unsegment_input")
class UnsegmentInputLayer(ConcatInputLayer, Planned[UnsegmentInputPlan]):
    """``y[b, t, k * n + f] = x[s(b, t - k), k, f]``: what all segments of `segment_input` have at frame t.

    The entries of the segment that begins at t come first, then those of the one that began a frame earlier; 0 where
    none did. The output is [batch, time, window * n features].

    No parameters. Lengths: those before `segment_input`.

    Example::

        network = {
            "segments": {"class": "segment_input", "window": 2, "from": "data"},
            "output": {"class": "unsegment_input", "from": "segments"}}
    """

    def template(self, ctx: PlanContext) -> UnsegmentInputPlan:
        """Infer the output: batch, time, features of all segments."""
        data = self.input_template(ctx)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        packed = None if data.batch_axis is None else data.dims[data.batch_axis]
        frames = None if data.time_axis is None else data.dims[data.time_axis]
        if not isinstance(packed, PackedBatch) or not isinstance(frames, SegmentFrames) or data.rank != 3:
            raise ctx.error(
                "needs the segments of a layer such as segment_input, [segments, window, F], got %s." % data
            )
        order: list[Any] = [data.batch_axis, data.time_axis, data.feature_axis]
        out = data.permuted(order).replace(vocab=None, time_axis=1)
        out = out.with_dim(0, packed.batch).with_dim(1, packed.inner)
        return UnsegmentInputPlan(with_features(ctx, out, 2, frames.window * size), packed, order)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a scatter, and slices moved by a frame each."""
        x = transpose(self.emit_input(ctx), self.plan.order)
        batch, frames = self.plan.packed.batch, self.plan.packed.inner
        starts = frame_indices(ctx.seq_mask_by_batch(Data((batch, frames), "bool"), 1))
        y = unpack(x, starts, ctx.size(batch), ctx.size(frames))
        window = ctx.output.dim // x.shape[-1]
        y.set_shape([None, None, window, None])
        return merge_axes(join_segments(y), 2, 2)[0]
