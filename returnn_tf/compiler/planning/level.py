"""One level of a network while it is planned: its layers as the config has them, and where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional, Protocol

from returnn_tf.compiler.planning.build_state import BuildState
from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.extra_names import split_extra
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.graph.node import Node
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim

#: Marks of layers: being planned, and planned.
OPEN, DONE = "open", "done"
#: Limit of nested networks: each level takes some frames of Python's stack.
MAX_DEPTH = 40


class StepPlanner(Protocol):
    """Plans the network inside a `rec` layer; builds on `NetworkBuilder`, see `returnn_tf.compiler.loops`."""

    def __call__(self, owner: Node, parent: Any) -> Node:
        """Return the output for all steps.

        :param owner: the `rec` layer, with its sources
        :param parent: plans the enclosing network
        """


class NetworkLevel:
    """The state of one level: a network dict, or the one nested in a layer.

    :param inputs: data key -> node, for nested networks
    :param plan_steps: plans the networks of `rec` layers
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        state: BuildState,
        plan_steps: StepPlanner,
        *,
        path: str = "",
        scope: str = "",
        parent: Optional[NetworkLevel] = None,
        inputs: Optional[dict[str, Node]] = None,
    ) -> None:
        self.state = state
        self.plan_steps = plan_steps
        self.network = network
        self.behavior_version = state.behavior_version
        self.dim_names = state.dim_names
        self.search: bool = state.search if parent is None else parent.search
        #: Of a network that is not nested: prefix such as ``extra.search:`` -> its extra network of this name.
        self.extra_network: Optional[Callable[[str], NetworkLevel]] = None
        self.path = path
        self.scope = scope
        self.parent = parent
        self.inputs = inputs
        self.depth: int = 0 if parent is None else parent.depth + 1
        if self.depth > MAX_DEPTH:
            raise LayerError("Layer %r: networks are nested more than %d levels deep." % (path, MAX_DEPTH))
        #: The builder that infers the templates: that of the innermost enclosing loop, or of the whole network.
        self.template_builder: NetworkLevel = self if parent is None else parent.template_builder
        self.in_step: bool = parent.in_step if parent is not None else False
        self.loop_dim: Optional[Dim] = parent.loop_dim if parent is not None else None
        self.outer_reuse: tuple[ReuseLevel, ...] = parent.outer_reuse if parent is not None else ()
        self.specs = self.parse(network, path)
        self._registered = {
            spec.options["register_as_extern_data"]: name
            for name, spec in self.specs.items()
            if spec.options.get("register_as_extern_data") and spec.error is None
        }
        #: The layer that contains the network.
        self.owner: Optional[Node] = None
        self._nodes: dict[str, Node] = {}
        self._marks: dict[str, str] = {}

    def parse(self, network: Mapping[str, Any], path: str) -> dict[str, LayerSpec]:
        """Return the layers of the network, without those of extra networks."""
        specs = self.state.parse(network, path)
        return specs if self.parent is not None else {n: s for n, s in specs.items() if split_extra(n) is None}

    @property
    def sink(self) -> list[Node]:
        """Return the list that collects planned nodes in the order of their computation."""
        return self.state.nodes if self.parent is None else self.parent.sink

    # --- what a nested network needs of the one around it, see `NetworkBuilder` ---

    def node(self, name: str) -> Node:
        """Return the planned layer of this network; plan it and its dependencies first if necessary."""
        raise NotImplementedError

    def resolve(self, ref: str, where: str) -> Node:
        """Return the layer or input of a name."""
        raise NotImplementedError

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Return the layer whose parameters a name refers to."""
        raise NotImplementedError

    def knows(self, ref: str) -> bool:
        """Return whether the reference names a layer of this network."""
        raise NotImplementedError

    def find(self, ref: str, where: str) -> Optional[Node]:
        """Return the layer of a name in this network, or None."""
        raise NotImplementedError

    def infer_template(self, node: Node, ctx: PlanContext) -> Data:
        """Return the layer's own template."""
        raise NotImplementedError

    def check_out_shape(self, node: Node) -> None:
        """Check the template against the option ``out_shape``."""
        raise NotImplementedError

    @property
    def step_results(self) -> Optional[list[Any]]:
        """Return the list for results within the step of a loop, which has to bring them out; None outside."""
        return None if self.parent is None else self.parent.step_results
