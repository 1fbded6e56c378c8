"""The interface of the compiler to layers while they are planned."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.dim_binding import DeclaredDims


class NetworkPlanner(abc.ABC):
    """The planner of a network dict, as its layers see it.

    Layers are below the compiler, which plans them; so this is the interface, and the compiler has the class.
    """

    semantics: Semantics
    #: Whether the network searches.
    search: bool
    #: Whether the layers are those of one step of a loop.
    in_step: bool
    #: The step axis, for layers of a loop that are computed for all steps at once.
    loop_dim: Optional[Dim]
    #: The axis that the innermost loop runs over, if something outside of it gives the number of steps.
    iterated_dim: Optional[Dim]
    #: ``reuse_params`` of the `rec` layers around, the innermost first.
    outer_reuse: tuple[ReuseLevel, ...]
    #: The scope of the parameters of the network.
    param_scope: str
    #: The planned nodes, in the order of their computation.
    planned_nodes: list[Node]
    dims: DeclaredDims

    # --- names ---

    @abc.abstractmethod
    def resolve(self, ref: str, where: str) -> Node:
        """Return the node of a name in ``from`` or in an option; plan it first if necessary.

        :param where: the start of an error
        :raises ConfigError: unknown name, with the nearest known one
        """

    @abc.abstractmethod
    def find(self, ref: str, where: str) -> Optional[Node]:
        """Return the node of a layer of this network, or None if it has no such layer."""

    @abc.abstractmethod
    def planned(self, name: str) -> Optional[Node]:
        """Return a layer of this network if it is planned already, else None."""

    @abc.abstractmethod
    def owner_of_params(self, ref: str, where: str) -> Node:
        """Return the layer whose parameters a name in ``reuse_params`` refers to."""

    @abc.abstractmethod
    def target_node(self, owner: Node, target: str) -> Node:
        """Return the layer or data key that a target names."""

    @abc.abstractmethod
    def target_data(self, owner: Node, target: str) -> Data:
        """Return the template of a target without counting a data key as used."""

    @abc.abstractmethod
    def extern_node(self, key: str) -> Node:
        """Return the input node of a data key; that of the names of the sequences need not be declared."""

    @abc.abstractmethod
    def node_with_dim(self, owner: Node, dim: Dim) -> Optional[Node]:
        """Return a planned layer or input with this dim, preferring what the layer needs anyway.

        Its emission makes the lengths of the dim known.
        """

    # --- layers within layers ---

    @abc.abstractmethod
    def subnetwork(
        self,
        owner: Node,
        network: dict[str, Any],
        inputs: dict[str, Node],
        scope: str,
        loop_dim: Optional[Dim] = None,
    ) -> Node:
        """Plan a nested network and return its output layer.

        :param inputs: data key inside -> node
        :param scope: of the parameters
        :param loop_dim: the step axis inside, if it differs from the one here
        """

    @abc.abstractmethod
    def inner_network(self, owner: Node) -> Node:
        """Plan the network of the option ``inner_network`` of a layer and return its output layer."""

    @abc.abstractmethod
    def step_network(self, owner: Node) -> Node:
        """Plan the network that is the unit of a `rec` layer and return its output for all steps."""

    @abc.abstractmethod
    def nested_node(self, owner: Node, name: str) -> Optional[Node]:
        """Return a layer of the nested network of ``owner``."""

    @abc.abstractmethod
    def implicit_layer(self, owner: Node, name: str, layer: Layer, sources: Sequence[Node]) -> Node:
        """Plan a layer that the config does not name."""

    @abc.abstractmethod
    def layer_of_dict(self, owner: Node, options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        """Plan the layer of a dict as a part of another one, with its scope and options of the parameters.

        :param options: the dict, without ``from``
        """

    @abc.abstractmethod
    def sub_output(self, owner: Node, name: str) -> Node:
        """Return a node for a further output of a layer."""

    # --- results ---

    @abc.abstractmethod
    def hide_results(self, nodes: Sequence[Node]) -> None:
        """Take layers out of the results of the network, as they may not be computed."""

    @abc.abstractmethod
    def layers_with_loss(self, start: int) -> list[Node]:
        """Return the layers with a loss among the planned nodes from an index on."""

    @abc.abstractmethod
    def take_losses(self, start: int) -> list[LossNode]:
        """Plan the losses of the planned nodes from an index on, and take them out of the network's losses."""

    @abc.abstractmethod
    def add_loss(self, loss: LossNode) -> None:
        """Add a loss to those of the network."""
