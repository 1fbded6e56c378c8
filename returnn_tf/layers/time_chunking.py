"""`time_chunking` and `time_unchunking`: long sequences as batches of overlapping short ones, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from returnn_tf.layers.concat_input import ConcatInputLayer
from returnn_tf.layers.node import Node
from returnn_tf.layers.options import option
from returnn_tf.layers.registry import register_layer
from returnn_tf.ops.shape import size_of, transpose
from returnn_tf.ops.windows import axis_slice, overlap_add, pad_axis
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext


@register_layer("time_chunking")
class TimeChunkingLayer(ConcatInputLayer):
    """Cuts every sequence into overlapping chunks, which become sequences of their own.

    Chunk c of sequence b has the frames ``c * chunk_step ... c * chunk_step + chunk_size - 1`` and is at
    ``b * chunks + c`` in the batch axis. All sequences of a batch make the same number of chunks:
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
    axis: Any = option("T", help="the axis to cut")

    def template(self, ctx: "PlanContext") -> Data:
        """Chunk frames, batch, others."""
        if self.chunk_size < 1 or not 1 <= self.chunk_step:
            raise ctx.error("chunk_size and chunk_step must be positive.")
        data = self.input_template(ctx)
        axis, batch = ctx.axis(data, self.axis), data.batch_axis
        if batch is None or axis in (batch, data.feature_axis):
            raise ctx.error("needs a batch axis, and an axis to cut which is not batch or feature; got %s." % data)
        self._axes: List[int] = [axis, batch] + [i for i in range(data.rank) if i not in (axis, batch)]
        #: Read by `time_unchunking`.
        self.frames_dim, self.batch_dim = data.dims[axis], data.dims[batch]
        self.chunk_dim = ctx.bind(self.out_dim, ctx.new_spatial(None, "chunk"))
        self.chunks_dim = Dim(DimKind.BATCH, None, "%s:chunks" % self.node.path)
        out = data.permuted(self._axes).with_dim(0, self.chunk_dim).with_dim(1, self.chunks_dim)
        return out.replace(time_axis=0)

    def emit(self, ctx: "EmitContext") -> Any:
        """Frames gathered by chunk."""
        x = transpose(self.emit_input(ctx), self._axes)
        count, frames = self.chunk_count(ctx)
        x = pad_axis(x, 0, 0, frames - size_of(x, 0))
        batch = ctx.size(self.batch_dim)
        ctx.define_size(self.chunks_dim, batch * count)
        starts = tf.range(count) * self.chunk_step
        lens = tf.broadcast_to(tf.reshape(ctx.lens(self.frames_dim), [-1, 1]), [batch, count]) - starts
        lens = tf.clip_by_value(lens, 0, self.chunk_size)
        ctx.define_lens(self.chunk_dim, tf.reshape(lens, [-1]), size=self.chunk_size)
        y = tf.gather(x, starts + tf.range(self.chunk_size)[:, None])  # [chunk_size, chunks, batch, others]
        y = transpose(y, [0, 2, 1] + list(range(3, y.shape.rank)))
        return tf.reshape(y, tf.concat([[self.chunk_size, -1], tf.shape(x)[2:]], axis=0))

    def chunk_count(self, ctx: "EmitContext") -> Tuple[Any, Any]:
        """(Number of chunks per sequence, number of frames that they cover)."""
        frames = ctx.size(self.frames_dim)
        count = tf.maximum(-(-(frames - self.chunk_size) // self.chunk_step), 0) + 1
        covered = (count - 1) * self.chunk_step + self.chunk_size
        return count, tf.maximum(covered, frames)


@register_layer("time_unchunking")
class TimeUnchunkingLayer(ConcatInputLayer):
    """The inverse of `time_chunking`: sequences put together from their chunks, by the mean where these overlap.

    The output is [time, batch, others]. No parameters. Lengths: those before the chunking.

    Example::

        network = {
            "chunks": {"class": "time_chunking", "chunk_size": 4, "chunk_step": 2, "from": "data"},
            "output": {"class": "time_unchunking", "chunking_layer": "chunks", "from": "chunks"}}
    """

    chunking_layer: Any = option(help="the layer of class time_chunking", refs=True)

    def template(self, ctx: "PlanContext") -> Data:
        """The axes of before the chunking."""
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

    def emit(self, ctx: "EmitContext") -> Any:
        """Overlapping chunks added, divided by their number."""
        chunking = self._chunking
        assert chunking is not None
        x = transpose(self.emit_input(ctx), self._axes)
        count, _ = chunking.chunk_count(ctx)
        frames = ctx.size(chunking.frames_dim)
        step = chunking.chunk_step
        shape = tf.concat([[chunking.chunk_size, ctx.size(chunking.batch_dim), count], tf.shape(x)[2:]], axis=0)
        x = tf.reshape(x, shape)
        x = transpose(x, [0, 2, 1] + list(range(3, x.shape.rank)))  # [chunk_size, chunks, batch, others]
        covered = overlap_add(tf.ones([chunking.chunk_size, count], x.dtype), stride=step)
        covered = tf.reshape(covered, [-1] + [1] * (x.shape.rank - 2))
        y = tf.math.divide_no_nan(overlap_add(x, stride=step), covered)
        y = pad_axis(y, 0, 0, tf.maximum(frames - tf.shape(y)[0], 0))
        return axis_slice(y, 0, 0, frames)


def _chunking_of(node: Any) -> Optional[TimeChunkingLayer]:
    layer = node.layer if isinstance(node, Node) else None
    return layer if isinstance(layer, TimeChunkingLayer) else None
