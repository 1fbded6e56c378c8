"""`image_summary`: shows a layer as pictures in TensorBoard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.loop_axis import refuse_in_step
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.events import write_images
from returnn_tf.util.lazy_tf import tf

_SECONDS_BETWEEN = 30.0
_CHANNELS = (1, 3, 4)


@register_layer("image_summary")
class ImageSummaryLayer(Layer):
    """``y = x``; in training, the first sequences of some batches go to the event files as pictures (``tf_log_dir``).

    The source has a batch axis, two axes for rows and columns, and a feature axis of size 1 (grey), 3 (RGB) or 4
    (RGBA). Each picture is scaled to its range of values. Attention weights are [T-dec, T-enc, B, 1].
    Parameters: none. Lengths: unchanged.

    Example::

        network = {
            "picture": {"class": "expand_dims", "axis": "F", "from": "data"},
            "output": {"class": "image_summary", "from": "picture"}}
    """

    has_sink = True
    sink_per_run = True
    max_outputs: int = option(3, help="number of sequences of a batch")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        data = ctx.single_source()
        refuse_in_step(ctx)
        if self.max_outputs < 1:
            raise ctx.error("max_outputs must be at least 1, got %d." % self.max_outputs)
        if data.unknown:
            return data
        if data.rank != 4 or data.batch_axis is None or data.dim not in _CHANNELS or data.feature_axis is None:
            raise ctx.error(
                "the source %s is no picture: it needs a batch axis, two axes, and a feature axis of size 1, 3 or 4. "
                "For grey pictures add one by expand_dims with axis 'F'." % data
            )
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the source, and pass on the pictures in training."""
        data = ctx.output
        assert data.batch_axis is not None and data.feature_axis is not None
        order = [data.batch_axis, *(a for a in range(4) if a not in (data.batch_axis, data.feature_axis))]
        x = ctx.source()
        ctx.forward_aux()
        if ctx.train:
            pictures = tf.cast(transpose(x, [*order, data.feature_axis])[: self.max_outputs], tf.float32)
            low = tf.reduce_min(pictures, axis=[1, 2, 3], keepdims=True)
            high = tf.reduce_max(pictures, axis=[1, 2, 3], keepdims=True)
            step = tf.constant(0, tf.int64) if ctx.step is None else tf.cast(ctx.step, tf.int64)
            ctx.set_sink_values({"pictures": tf.math.divide_no_nan(pictures - low, high - low), "step": step})
        return x

    def check_sink(self, run: RunInfo) -> None:
        """Do nothing: it replaces no file."""

    def open_sink(self, run: RunInfo) -> ImageSink:
        """Return the event file of a pass."""
        name = re.sub("[^A-Za-z0-9_.-]", "_", self.node.path)
        return ImageSink("" if run.events is None else os.path.join(run.events, "images", name), self.node.path)


class ImageSink:
    """Writes pictures to an event file, at most one batch per half a minute.

    :param path: folder of the file; "" for none
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self._name = name
        self._writer: Optional[Any] = None
        self._next = 0.0

    def write(self, values: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Write the pictures of a batch."""
        if not self.path or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS_BETWEEN
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self.path)
        with self._writer.as_default():
            write_images(self._name, values["pictures"][: len(tags)], int(values["step"]))

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        """Complete the file: its pictures show what was trained before a failure."""
        self.close()
