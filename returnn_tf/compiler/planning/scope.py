"""Name resolution for layer dicts: the part of a builder that the planning of options and losses needs."""

from __future__ import annotations

from typing import Optional, Protocol

from returnn_tf.graph.node import Node
from returnn_tf.tensor import Dim


class Scope(Protocol):
    """One network, seen from the layers in it."""

    behavior_version: int

    def resolve(self, ref: str, where: str) -> Node:
        """Return the node of a name in ``from`` or in an option.

        :param where: the start of an error
        :raises ConfigError: unknown name, with the nearest known one
        """

    def find(self, ref: str, where: str) -> Optional[Node]:
        """Return the node of a layer of this network, or None if it has no such layer."""

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Return the layer whose parameters a name in ``reuse_params`` refers to."""

    def target_node(self, owner: Node, target: str) -> Node:
        """Return the layer or data key that a target names."""

    def extern_node(self, key: str) -> Node:
        """Return the input node of a data key; that of the names of the sequences need not be declared."""

    def resolve_dim(self, dim: Dim) -> Dim:
        """Return the definition of a declared dim, or the dim itself."""
