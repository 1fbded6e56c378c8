"""The dims of a network: those that the user declared, and the layers that define their lengths."""

from __future__ import annotations

from typing import Optional

from returnn_tf.compiler.planning.level import NetworkLevel
from returnn_tf.compiler.planning.names import Names
from returnn_tf.graph.node import Node
from returnn_tf.tensor import Dim


class NetworkDims(Names):
    """A level of a network that binds declared dims, and knows who defines lengths."""

    def bind_dim(self, declared: Dim, definition: Dim) -> None:
        """Implement `Builder.bind_dim`."""
        if self.resolve_dim(definition) is not declared:
            self.state.dims[declared] = definition

    def take_dim(self, owner: Node, dim: Dim) -> None:
        """Implement `DeclaredDims.take_dim`."""
        self.state.dim_owners[dim] = owner.path

    def knows_dim(self, owner: Node, dim: Dim) -> bool:
        """Implement `DeclaredDims.knows_dim`."""
        if dim.size is not None or dim.is_batch:
            return True
        if any(dim in data.dims for data in self.state.extern_data.values()):
            return True
        if dim in self.state.dim_owners:
            return self.state.dim_owners[dim] != owner.path
        if dim.expr is not None:
            return all(self.knows_dim(owner, operand) for operand in dim.expr.args)
        return any(dim in node.output.dims for node in owner.deps if node.planned)

    def node_with_dim(self, owner: Node, dim: Dim) -> Optional[Node]:
        """Implement `Builder.node_with_dim`, preferring what the layer needs anyway."""
        level: Optional[NetworkLevel] = self
        used_inputs = sorted(self.state.extern.values(), key=lambda node: node.extern_key != "data")
        candidates = owner.deps + list((self.inputs or {}).values()) + used_inputs
        while level is not None:
            candidates += [node for node in level._nodes.values() if node is not owner]
            level = level.parent
        for node in candidates:
            if node.planned and dim in node.output.dims:
                return node
        key = next((k for k, data in self.state.extern_data.items() if dim in data.dims), None)
        return None if key is None else self.extern_node(key)
