"""What a loop reads from outside as one tensor ``encoder-states`` [batch, time, features], as RASR passes it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.config.errors import ExportError
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


class Packing:
    """The values of outer layers side by side in the feature axis; those without a time axis are repeated over time.

    :param where: how errors begin
    :raises ConfigError: a value is not float, has an axis of unknown size but time, or two have different time axes
    """

    def __init__(self, nodes: Sequence[Node], where: str) -> None:
        self.nodes = list(nodes)
        #: The time axis; None if no value has one.
        self.time: Optional[Dim] = None
        for node in self.nodes:
            self._check(node, where)
        self._widths = [self._width(node.output) for node in self.nodes]

    def _check(self, node: Node, where: str) -> None:
        data = node.output
        dims = [dim for dim in data.dims if dim.is_dynamic() and not dim.is_batch]
        what = None
        if data.dtype != "float32":
            what = "is of type %s, not float32" % data.dtype
        elif len(dims) > 1:
            what = "has several axes of unknown size"
        elif dims and self.time is not None and dims[0] is not self.time:
            what = "has another time axis than the other values"
        if what:
            raise ExportError(
                "%s: the step reads layer %r, whose value %s %s. The decoder gets a single tensor [batch, time, "
                "features]. Compute what the step needs of that layer outside of the loop."
                % (where, node.path, data, what)
            )
        self.time = dims[0] if dims else self.time

    def _rest(self, data: Data) -> list[int]:
        """Return the sizes of the axes but batch and time, in batch-major order."""
        dims = [data.dims[axis] for axis in batch_major_order(data)]
        return [dim.size or 0 for dim in dims if not dim.is_batch and dim is not self.time]

    def _width(self, data: Data) -> int:
        width = 1
        for size in self._rest(data):
            width *= size
        return width

    def pack(self, graph: Lowering) -> tuple[Any, Any]:
        """Return the values of a graph [batch, time, features] and their lengths int32 [batch]."""
        dims = graph.dims
        batch = dims.batch_size
        frames = 1 if self.time is None else dims.get_size(self.time)
        lens = tf.ones([batch], tf.int32) if self.time is None else tf.broadcast_to(dims.get_lens(self.time), [batch])
        parts = []
        for node, width in zip(self.nodes, self._widths):
            data = node.output
            order = batch_major_order(data)
            # the time axis behind the batch axis
            order.sort(key=lambda axis: 0 if data.dims[axis].is_batch else 1 if data.dims[axis] is self.time else 2)
            x = transpose(graph.values.outputs[node], order)
            has_time = self.time is not None and self.time in data.dims
            x = tf.reshape(x, [batch if data.batch_axis is not None else 1, frames if has_time else 1, width])
            parts.append(tf.broadcast_to(x, tf.stack([batch, frames, width])))
        value = parts[0] if len(parts) == 1 else tf.concat(parts, axis=2)
        return tf.ensure_shape(value, [None, None, sum(self._widths)]), lens

    @property
    def width(self) -> int:
        """Return the size of the feature axis."""
        return sum(self._widths)

    def unpack(self, graph: Lowering, packed: Any, lens: Any) -> None:
        """Set the values and lengths in a lowering.

        :param packed: [batch, time, features]
        :param lens: int32 [batch]
        """
        batch, frames = tf.shape(packed)[0], tf.shape(packed)[1]
        if self.time is not None:
            graph.dims.lens[self.time], graph.dims.sizes[self.time] = lens, frames
        start = 0
        for node, width in zip(self.nodes, self._widths):
            data = node.output
            has_time = self.time is not None and self.time in data.dims
            x = packed[:, :, start : start + width] if len(self.nodes) > 1 else packed
            start += width
            x = x if has_time else x[:, :1]
            x = x if data.batch_axis is not None else x[:1]
            order = batch_major_order(data)
            order.sort(key=lambda axis: 0 if data.dims[axis].is_batch else 1 if data.dims[axis] is self.time else 2)
            sizes = [batch] if data.batch_axis is not None else []
            sizes += [frames] if has_time else []
            x = tf.reshape(x, [*sizes, *self._rest(data)])
            graph.values.outputs[node] = transpose(x, [order.index(axis) for axis in range(data.rank)])
            graph.values.outputs[node].set_shape(data.static_shape)
