"""What all levels of one network share while it is planned. No TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Tuple

from returnn_tf.graph.node import LossNode, Node
from returnn_tf.network.planning.parse import LayerSpec
from returnn_tf.network.planning.plan_loss import plan_loss
from returnn_tf.tensor import Data, Dim

if TYPE_CHECKING:
    from returnn_tf.network.planning.builder import NetworkBuilder


class BuildState:
    """What all levels of one network share while it is planned."""

    def __init__(
        self, extern_data: Mapping[str, Data], behavior_version: int, train: bool, search: bool, default_target: str
    ) -> None:
        self.extern_data = dict(extern_data)
        self.default_target = default_target
        self.behavior_version = behavior_version
        self.train = train
        self.search = search
        self.nodes: List[Node] = []
        self.extern: Dict[str, Node] = {}
        self.outputs: Dict[str, Node] = {}
        self.dims: Dict[Dim, Dim] = {}
        self.nested: Dict[Node, NetworkBuilder] = {}
        self.open_losses: List[Tuple[NetworkBuilder, Node, LayerSpec]] = []
        self.losses: List[LossNode] = []
        #: Plans the network inside of a `rec` layer; set by whoever knows how, since that builds on this module.
        self.plan_loop: Callable[[Node, NetworkBuilder], Node] = no_loops

    def resolve_dim(self, dim: Dim) -> Dim:
        """The definition of a declared dim, or the dim itself."""
        while dim in self.dims:
            dim = self.dims[dim]
        return dim.with_operands(self.resolve_dim)

    def finish_losses(self) -> None:
        """Plans all losses; their targets may bring further layers, with further losses."""
        while self.open_losses:
            builder, node, spec = self.open_losses.pop(0)
            plan_loss(builder, node, spec)


def no_loops(owner: Node, builder: NetworkBuilder) -> Node:
    """Where the planning of step networks is not set up."""
    raise AssertionError("loops are planned by returnn_tf.network.loops")
