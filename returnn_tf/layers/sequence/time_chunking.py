"""`time_chunking` and `time_unchunking`: long sequences as batches of overlapping short ones, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.chunks import chunk, chunk_count, unchunk
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Dim, DimKind
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class TimeChunkingPlan(LayerPlan):
    """The plan of `TimeChunkingLayer`.

    :param axes: order of the axes of the input: the frames, batch, others
    :param frames_dim: the axis that is cut
    :param batch_dim: the batch axis of the input
    :param chunk_dim: the frames of a chunk
    :param chunks_dim: the chunks of all sequences, a batch axis
    """

    axes: Sequence[int]
    frames_dim: Dim
    batch_dim: Dim
    chunk_dim: Dim
    chunks_dim: Dim


@register_layer("time_chunking")
class TimeChunkingLayer(ConcatInputLayer, Planned[TimeChunkingPlan]):
    """Cuts every sequence into overlapping chunks, which become separate sequences.

    Chunk c of sequence b has the frames ``c * chunk_step ... c * chunk_step + chunk_size - 1`` and is at
    ``b * chunks + c`` in the batch axis. All sequences of a batch have the same number of chunks:
    ``max(ceil((longest - chunk_size) / chunk_step), 0) + 1``. The output is [chunk_size, batch * chunks, others].

    No parameters. Lengths: the number of frames of the sequence in the chunk, 0 to chunk_size.

    Example::

        network = {
            "chunks": {"class": "time_chunking", "chunk_size": 3, "chunk_step": 2, "from": "data"},
            "h": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "chunks"},
            "output": {"class": "time_unchunking", "chunking_layer": "chunks", "from": "h"}}
    """

    chunk_size: int = option(help="number of frames in a chunk")
    chunk_step: int = option(help="distance of the first frames of neighbouring chunks")
    axis: Axis = option("T", help="the axis to cut")

    def template(self, ctx: PlanContext) -> TimeChunkingPlan:
        """Infer the output: chunk frames, batch, others."""
        if self.chunk_size < 1 or not self.chunk_step >= 1:
            raise ctx.error("chunk_size and chunk_step must be positive.")
        data = self.input_template(ctx)
        axis, batch = ctx.axis(data, self.axis), data.batch_axis
        if batch is None or axis in (batch, data.feature_axis):
            raise ctx.error("needs a batch axis, and an axis to cut other than batch or feature; got %s." % data)
        axes: list[int] = [axis, batch] + [i for i in range(data.rank) if i not in (axis, batch)]
        frames_dim, batch_dim = data.dims[axis], data.dims[batch]
        chunk_dim = ctx.bind(self.out_dim, ctx.new_spatial(None, "chunk"))
        chunks_dim = Dim(DimKind.BATCH, None, "%s:chunks" % self.node.path)
        out = data.permuted(axes).with_dim(0, chunk_dim).with_dim(1, chunks_dim)
        return TimeChunkingPlan(
            out.replace(time_axis=0),
            axes=axes,
            frames_dim=frames_dim,
            batch_dim=batch_dim,
            chunk_dim=chunk_dim,
            chunks_dim=chunks_dim,
        )

    def emit(self, ctx: EmitContext) -> Any:
        """Emit frames gathered by chunk."""
        x = transpose(self.emit_input(ctx), self.plan.axes)
        frames, batch = ctx.size(self.plan.frames_dim), ctx.size(self.plan.batch_dim)
        count = chunk_count(frames, self.chunk_size, self.chunk_step)
        ctx.define_size(self.plan.chunks_dim, batch * count)
        starts = tf.range(count) * self.chunk_step
        lens = tf.broadcast_to(tf.reshape(ctx.lens(self.plan.frames_dim), [-1, 1]), [batch, count]) - starts
        lens = tf.clip_by_value(lens, 0, self.chunk_size)
        ctx.define_lens(self.plan.chunk_dim, tf.reshape(lens, [-1]), size=self.chunk_size)
        return chunk(x, self.chunk_size, self.chunk_step)


@dataclasses.dataclass(frozen=True, eq=False)
class TimeUnchunkingPlan(LayerPlan):
    """The plan of `TimeUnchunkingLayer`.

    :param chunking: the layer that cut the sequences
    :param axes: order of the axes of the input: the frames of a chunk, the chunks, others
    """

    chunking: TimeChunkingLayer
    axes: Sequence[int]


@register_layer("time_unchunking")
class TimeUnchunkingLayer(ConcatInputLayer, Planned[TimeUnchunkingPlan]):
    """The inverse of `time_chunking`: chunks merged to sequences, by the mean where they overlap.

    The output is [time, batch, others]. No parameters. Lengths: those before the chunking.

    Example::

        network = {
            "chunks": {"class": "time_chunking", "chunk_size": 4, "chunk_step": 2, "from": "data"},
            "output": {"class": "time_unchunking", "chunking_layer": "chunks", "from": "chunks"}}
    """

    chunking_layer: LayerRef = option(help="the layer of class time_chunking", refs=True)

    def template(self, ctx: PlanContext) -> TimeUnchunkingPlan:
        """Infer the output: the axes from before the chunking."""
        chunking = _chunking_of(self.chunking_layer)
        if chunking is None:
            raise ctx.error("chunking_layer must be a layer of class time_chunking, got %r." % (self.chunking_layer,))
        data = self.input_template(ctx)
        if not data.dtype.startswith("float"):
            raise ctx.error("the source is %s, but overlapping chunks are averaged, which needs floats." % data)
        planned = chunking.plan
        both = [data.axes_of(planned.chunk_dim), data.axes_of(planned.chunks_dim)]
        if any(len(found) != 1 for found in both):
            raise ctx.error(
                "the source %s must have the axes %s and %s of %r, each once."
                % (data, planned.chunk_dim, planned.chunks_dim, self.chunking_layer.path)
            )
        axes = [both[0][0], both[1][0]]
        axes += [i for i in range(data.rank) if i not in axes]
        out = data.permuted(axes).with_dim(0, ctx.bind(self.out_dim, planned.frames_dim))
        return TimeUnchunkingPlan(out.with_dim(1, planned.batch_dim).replace(time_axis=0), chunking, axes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit overlapping chunks added, divided by their number."""
        chunking = self.plan.chunking
        x = transpose(self.emit_input(ctx), self.plan.axes)
        return unchunk(x, ctx.size(chunking.plan.frames_dim), chunking.chunk_size, chunking.chunk_step)


def _chunking_of(node: Any) -> Optional[TimeChunkingLayer]:
    layer = node.layer if isinstance(node, Node) else None
    return layer if isinstance(layer, TimeChunkingLayer) else None
