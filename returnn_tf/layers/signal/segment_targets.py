"""Targets of models of segments: classes and lengths in a window from each frame on."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import at_least, between, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.signal.features_last import with_features
from returnn_tf.layers.signal.segments import SegmentsLayer, SegmentsPlan
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.signal.segments import (
    class_frequencies,
    end_weights,
    first_end_labels,
    run_ends,
    run_lengths,
)
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(eq=False, repr=False)
class SegmentTargetsLayer(SegmentsLayer):
    """A layer that maps the labels in each segment."""

    def targets(self, ctx: PlanContext, segments: SegmentsPlan, frames: bool, features: int) -> SegmentsPlan:
        """Infer the output, float32.

        :param segments: of the labels, [segments, window]
        :param frames: whether the output has the frames as its time axis; otherwise a single one
        """
        data = segments.output.replace(dtype=ctx.float_dtype, sparse_dim=None, time_axis=1)
        if not frames:
            data = data.with_dim(1, ctx.new_spatial(1, "one"))
        data = with_features(ctx, data.with_axis(2, ctx.new_feature(features)), 2, features)
        return dataclasses.replace(segments, output=data)

    def labels(self, ctx: EmitContext) -> Any:
        """Return the source as [batch, time]."""
        return transpose(self.emit_input(ctx), self.plan.order)


@register_layer("classes_to_segments")
class ClassesToSegmentsLayer(SegmentTargetsLayer):
    """``y[s, i, c] = (number of the frames t to t + i with class c) / (i + 1)`` for the segment s from frame t on.

    The source has labels, [B, T]; the output is [segments, window, num_classes], see `segment_input`.

    No parameters. Lengths: ``min(window, n - t)``.

    Example::

        extern_data = {"data": {"dim": 3, "sparse": True}}
        network = {
            "output": {"class": "classes_to_segments", "num_classes": 3, "window": 2, "from": "data"}}
    """

    num_classes: int = option(check=at_least(1), help="number of classes")

    def template(self, ctx: PlanContext) -> SegmentsPlan:
        """Infer the output: segments, frames, classes."""
        found = self.segments(ctx)
        if self.source_classes(ctx, found.output) > self.num_classes:
            raise ctx.error(
                "the labels are %s, more than num_classes = %d." % (found.output.sparse_dim, self.num_classes)
            )
        return self.targets(ctx, found, True, self.num_classes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a cumulative sum."""
        return class_frequencies(self.cut(ctx, self.labels(ctx))[0], self.num_classes, ctx.float_dtype)


@register_layer("classes_to_length_distribution")
class ClassesToLengthDistributionLayer(SegmentTargetsLayer):
    """The lengths of the runs of equal classes in a segment, relative to its length, at the last frame of each run.

    The source has labels, [B, T]; the output is [segments, 1, window], see `segment_input`. Its sum over the window is
    1.

    No parameters. Lengths: one frame each.

    Example::

        extern_data = {"data": {"dim": 3, "sparse": True}}
        network = {"output": {"class": "classes_to_length_distribution", "window": 3, "from": "data"}}
    """

    scale: float = option(1.0, help="scale of the lengths", unsupported="the output is 1 at the length of each run")

    def template(self, ctx: PlanContext) -> SegmentsPlan:
        """Infer the output: segments, one frame, window."""
        found = self.segments(ctx)
        self.source_classes(ctx, found.output)
        return self.targets(ctx, found, False, self.window)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit comparisons of neighbouring frames."""
        return run_lengths(*self.cut(ctx, self.labels(ctx)), ctx.float_dtype)[:, None]


@register_layer("classes_to_length_distribution_global")
class ClassesToLengthDistributionGlobalLayer(SegmentTargetsLayer):
    """The frames in which a segment may end: the ends of the runs of equal classes in the whole sequence.

    The k-th end after the start has the weight ``w * (1 - w) ** k`` with w = ``weight_falloff``, the last frame of the
    window at least 1e-4; these are averaged over ``target_smoothing`` frames and divided by their sum. The source has
    labels, [B, T]; the output is [segments, 1, window], or with ``broadcast_axis`` "feature" [segments, window, 1].

    No parameters. Lengths: one frame each, or ``min(window, n - t)``, see `segment_input`.

    Example::

        extern_data = {"data": {"dim": 3, "sparse": True}}
        network = {
            "output": {
                "class": "classes_to_length_distribution_global", "window": 3, "weight_falloff": 0.5,
                "broadcast_axis": "feature", "from": "data"}}
    """

    weight_falloff: float = option(1.0, check=between(0, 1), help="weight of the first end; that of others falls off")
    target_smoothing: Optional[int] = option(None, check=at_least(1), help="frames to average over, an odd number")
    min_length: int = option(1, check=at_least(1), help="ignore ends of shorter segments")
    broadcast_axis: str = option("time", choices=("time", "feature"), help="the axis of size 1")

    def template(self, ctx: PlanContext) -> SegmentsPlan:
        """Infer the output: segments, and window as frames or features."""
        found = self.segments(ctx)
        self.source_classes(ctx, found.output)
        if self.target_smoothing is not None and self.target_smoothing % 2 == 0:
            raise ctx.error("target_smoothing must be odd, got %d." % self.target_smoothing)
        by_feature = self.broadcast_axis == "feature"
        return self.targets(ctx, found, by_feature, 1 if by_feature else self.window)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit weights of ends."""
        labels = self.labels(ctx)
        ends = run_ends(labels, tf.broadcast_to(ctx.lens(self.plan.frames), [tf.shape(labels)[0]]))
        ends, lens = self.cut(ctx, ends)
        ends = tf.logical_and(ends, tf.range(self.window) >= self.min_length - 1)
        weights = end_weights(ends, lens, self.weight_falloff, self.target_smoothing or 1, ctx.float_dtype)
        return weights[:, :, None] if self.broadcast_axis == "feature" else weights[:, None]


@register_layer("segment_alignment")
class SegmentAlignmentLayer(SegmentTargetsLayer):
    """``y[s, i, c] = 1`` if the segment s, from frame t on, ends at frame t + i and has the label c there; else 0.

    The source has two entries for each frame, the label and whether a segment ends there: [B, 2 T] integers. The output
    is [segments, window, num_classes], see `segment_input`; it is 0 for a segment that does not end in the window.

    No parameters. Lengths: ``min(window, n - t)`` of n = ``floor(length / 2)`` frames.

    Example::

        extern_data = {"data": {"dim": 3, "sparse": True}}
        network = {"output": {"class": "segment_alignment", "num_classes": 3, "window": 2, "from": "data"}}
    """

    num_classes: int = option(check=at_least(1), help="number of classes")

    def template(self, ctx: PlanContext) -> SegmentsPlan:
        """Infer the output: segments, frames, classes."""
        found = self.segments(ctx, lambda dim: dim.floordiv_right(2))
        self.source_classes(ctx, found.output)
        return self.targets(ctx, found, True, self.num_classes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one-hot labels."""
        pairs, frames = self.labels(ctx), ctx.size(self.plan.frames)
        labels, _ = self.cut(ctx, pairs[:, 0::2][:, :frames])
        ends, lens = self.cut(ctx, tf.not_equal(pairs[:, 1::2], 0))
        return first_end_labels(labels, ends, lens, self.num_classes, ctx.float_dtype)
