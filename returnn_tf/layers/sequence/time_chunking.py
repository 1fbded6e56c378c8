"""`time_chunking` and `time_unchunking`: long sequences as batches of overlapping short ones, and back."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.node import Node
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.native.chunk import chunk_ops, native_chunk, native_unchunk
from returnn_tf.ops.frames.chunks import chunk, chunk_count, unchunk
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


@register_layer("time_chunking")
class TimeChunkingLayer(ConcatInputLayer):
    """Cuts every sequence into overlapping chunks, which become sequences of their own.

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

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: chunk frames, batch, others."""
        if self.chunk_size < 1 or not self.chunk_step >= 1:
            raise ctx.error("chunk_size and chunk_step must be positive.")
        data = self.input_template(ctx)
        axis, batch = ctx.axis(data, self.axis), data.batch_axis
        if batch is None or axis in (batch, data.feature_axis):
            raise ctx.error("needs a batch axis, and an axis to cut other than batch or feature; got %s." % data)
        self._axes: list[int] = [axis, batch] + [i for i in range(data.rank) if i not in (axis, batch)]
        #: Read by `time_unchunking`.
        self.frames_dim, self.batch_dim = data.dims[axis], data.dims[batch]
        self.chunk_dim = ctx.bind(self.out_dim, ctx.new_spatial(None, "chunk"))
        self.chunks_dim = Dim(DimKind.BATCH, None, "%s:chunks" % self.node.path)
        out = data.permuted(self._axes).with_dim(0, self.chunk_dim).with_dim(1, self.chunks_dim)
        return out.replace(time_axis=0)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit frames gathered by chunk."""
        x = transpose(self.emit_input(ctx), self._axes)
        frames, batch = ctx.size(self.frames_dim), ctx.size(self.batch_dim)
        count = chunk_count(frames, self.chunk_size, self.chunk_step)
        ctx.define_size(self.chunks_dim, batch * count)
        starts = tf.range(count) * self.chunk_step
        lens = tf.broadcast_to(tf.reshape(ctx.lens(self.frames_dim), [-1, 1]), [batch, count]) - starts
        lens = tf.clip_by_value(lens, 0, self.chunk_size)
        ctx.define_lens(self.chunk_dim, tf.reshape(lens, [-1]), size=self.chunk_size)
        ops = _ops_for(x)
        if ops is None:
            return chunk(x, self.chunk_size, self.chunk_step)
        return native_chunk(ops, x, self.chunk_size, self.chunk_step)


@register_layer("time_unchunking")
class TimeUnchunkingLayer(ConcatInputLayer):
    """The inverse of `time_chunking`: chunks merged to sequences, by the mean where they overlap.

    The output is [time, batch, others]. No parameters. Lengths: those before the chunking.

    Example::

        network = {
            "chunks": {"class": "time_chunking", "chunk_size": 4, "chunk_step": 2, "from": "data"},
            "output": {"class": "time_unchunking", "chunking_layer": "chunks", "from": "chunks"}}
    """

    chunking_layer: LayerRef = option(help="the layer of class time_chunking", refs=True)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the axes from before the chunking."""
        self._chunking = chunking = _chunking_of(self.chunking_layer)
        if chunking is None:
            raise ctx.error("chunking_layer must be a layer of class time_chunking, got %r." % (self.chunking_layer,))
        data = self.input_template(ctx)
        if not data.dtype.startswith("float"):
            raise ctx.error("the source is %s, but overlapping chunks are averaged, which needs floats." % data)
        axes = [data.axes_of(chunking.chunk_dim), data.axes_of(chunking.chunks_dim)]
        if any(len(found) != 1 for found in axes):
            raise ctx.error(
                "the source %s must have the axes %s and %s of %r, each once."
                % (data, chunking.chunk_dim, chunking.chunks_dim, self.chunking_layer.path)
            )
        self._axes = [axes[0][0], axes[1][0]]
        self._axes += [i for i in range(data.rank) if i not in self._axes]
        out = data.permuted(self._axes).with_dim(0, ctx.bind(self.out_dim, chunking.frames_dim))
        return out.with_dim(1, chunking.batch_dim).replace(time_axis=0)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit overlapping chunks added, divided by their number."""
        chunking = self._chunking
        assert chunking is not None
        x = transpose(self.emit_input(ctx), self._axes)
        sizes = (ctx.size(chunking.frames_dim), chunking.chunk_size, chunking.chunk_step)
        ops = _ops_for(x)
        return unchunk(x, *sizes) if ops is None else native_unchunk(ops, x, *sizes)


def _ops_for(x: Any) -> Optional[Any]:
    return chunk_ops() if x.dtype == tf.float32 else None


def _chunking_of(node: Any) -> Optional[TimeChunkingLayer]:
    layer = node.layer if isinstance(node, Node) else None
    return layer if isinstance(layer, TimeChunkingLayer) else None
