"""The packings of layers that are computed without the padding of sequences."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.dim_lengths import DimLengths
from returnn_tf.graph.layer import Node
from returnn_tf.graph.node_values import NodeValues
from returnn_tf.ops.frames.skipped_padding import FramePacking
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class FramePackings:
    """Which layers are computed for packed frames, and their values.

    :param nodes: these layers
    :param ops: the native ops for that
    :param by_dim: the packing of each time dim
    :param frames: the packed values of these layers and of their sources
    """

    nodes: frozenset[Node] = frozenset()
    ops: Any = None
    by_dim: dict[Dim, FramePacking] = dataclasses.field(default_factory=dict)
    frames: dict[Node, Any] = dataclasses.field(default_factory=dict)

    def child(self) -> FramePackings:
        """Return a copy for the body of a loop."""
        return dataclasses.replace(self, by_dim=dict(self.by_dim), frames=dict(self.frames))

    def of(self, node: Node, dims: DimLengths) -> Optional[FramePacking]:
        """Return the packing of the frames of a layer; None if it is computed for all frames."""
        if node not in self.nodes:
            return None
        dim = node.output.dims[1]
        if dim not in self.by_dim:
            lens, batch = dims.get_lens(dim), dims.get_size(node.output.dims[0])
            lens = tf.broadcast_to(lens, [batch])
            self.by_dim[dim] = FramePacking(self.ops, lens, tf.convert_to_tensor(dims.get_size(dim)))
        return self.by_dim[dim]

    def value(self, node: Node, packing: FramePacking, values: NodeValues) -> Any:
        """Return the value of a node for packed frames."""
        if node not in self.frames:
            self.frames[node] = packing.pack(values.outputs[node])
        return self.frames[node]
