"""What layers use of the compiler while they are planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Protocol

from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.node import Node
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.dim_binding import DeclaredDims


class Builder(DeclaredDims, Protocol):
    """The part of the compiler that layers use."""

    behavior_version: int
    search: bool
    #: Whether the layers are those of one step of a loop.
    in_step: bool
    #: The step axis, for layers of a loop that are computed for all steps at once.
    loop_dim: Optional[Dim]
    #: ``reuse_params`` of the `rec` layers around, the innermost first.
    outer_reuse: tuple[ReuseLevel, ...]

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Return the layer whose parameters a name in ``reuse_params`` refers to."""

    @property
    def sink(self) -> list[Node]:
        """Return the list that collects planned nodes in the order of their computation."""

    #: The scope of the parameters of the network.
    scope: str

    def hide_results(self, nodes: Sequence[Node]) -> None:
        """Take layers out of the results of the network, as they may not be computed."""

    def layers_with_loss(self, start: int) -> list[Node]:
        """Return the layers with a loss among those in the sink from an index on."""

    def take_losses(self, start: int) -> list[LossNode]:
        """Plan the losses of the layers in the sink from an index on, and take them out of the network's losses."""

    def add_loss(self, loss: LossNode) -> None:
        """Add a loss to those of the network."""

    def subnetwork(
        self,
        owner: Node,
        network: dict[str, Any],
        inputs: dict[str, Node],
        scope: str,
        loop_dim: Optional[Dim] = None,
    ) -> Node:
        """Plan a nested network and return its output layer."""

    def step_network(self, owner: Node) -> Node:
        """Plan the network that is the unit of a `rec` layer and return its output for all steps."""

    def nested_node(self, owner: Node, name: str) -> Optional[Node]:
        """Return a layer of the nested network of ``owner``."""

    def resolve(self, ref: str, where: str) -> Node:
        """Return the layer of a name in the network of the layer, see `returnn_tf.compiler.planning.scope.Scope`."""

    def target_data(self, owner: Node, target: str) -> Data:
        """Return the template of a target: a layer or a data key."""

    def target_node(self, owner: Node, target: str) -> Node:
        """Return the node of a target: a layer or a data key."""

    def extern_node(self, key: str) -> Node:
        """Return the input node of a data key; that of the names of the sequences need not be declared."""

    def node_with_dim(self, owner: Node, dim: Dim) -> Optional[Node]:
        """Return a planned layer or input with this dim, whose emission makes the lengths of the dim known."""

    def implicit_layer(self, owner: Node, name: str, layer: LayerBase, sources: Sequence[Node]) -> Node:
        """Plan a layer that the config does not name."""

    def sub_output(self, owner: Node, name: str) -> Node:
        """Return a node for a further output of a layer."""
