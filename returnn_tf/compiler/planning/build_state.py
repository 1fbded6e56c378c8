"""The state shared by all levels of one network while it is planned. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.parse import LayerSpec, parse_network
from returnn_tf.compiler.planning.plan_loss import plan_loss
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.config import did_you_mean
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.node import Node
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.dim_names import DimNames


class BuildState:
    """The state shared by all levels of one network while it is planned.

    :param train: whether the network is for training
    :param evaluate: whether losses of layers in loops are computed without that
    :param whole_loops: paths of `rec` layers of which no layer is moved out of the loop
    """

    def __init__(
        self,
        extern_data: Mapping[str, Data],
        behavior_version: int,
        train: bool,
        search: bool,
        default_target: str,
        evaluate: bool = False,
        whole_loops: Iterable[str] = (),
    ) -> None:
        self.extern_data = {key: data.map_dims(Dim.declared) for key, data in extern_data.items()}
        #: Data keys that do not exist -> the reason, for messages.
        self.empty_data_keys: dict[str, str] = {}
        self.default_target = default_target
        self.behavior_version = behavior_version
        self.train = train
        self.loop_losses = train or evaluate
        self.search = search
        self.whole_loops = frozenset(whole_loops)
        self.nodes: list[Node] = []
        self.extern: dict[str, Node] = {}
        self.outputs: dict[str, Node] = {}
        self.dims: dict[Dim, Dim] = {}
        self.dim_names = DimNames()
        #: Declared dims whose lengths a layer defines -> its path; a layer of a loop is planned several times.
        self.dim_owners: dict[Dim, str] = {}
        self.nested: dict[Node, Scope] = {}
        #: By layer with layers inside: finds the one whose parameters a name in ``reuse_params`` refers to.
        self.inner_owners: dict[Node, Callable[[str, str], Node]] = {}
        #: Layers whose parameters must exist though nothing may need the layer: (user, function that plans the layer).
        self.late_owners: list[tuple[Node, Callable[[], Optional[Node]]]] = []
        self.open_losses: list[tuple[Scope, Node, LayerSpec]] = []
        self.losses: list[LossNode] = []
        #: The layers in loops whose losses are not computed in this mode; an ordered set.
        self.omitted_losses: dict[str, None] = {}
        #: By path and identity of a network dict: the dict, kept alive so that its id stays unique, and its
        #: layers. A step network is planned several times, with the same dicts inside.
        self._parsed: dict[tuple[str, int], tuple[Any, dict[str, LayerSpec]]] = {}

    def key_hint(self, key: str, known: Iterable[str]) -> str:
        """Return why there is no such data key, or else the nearest known name."""
        return self.empty_data_keys.get(key) or did_you_mean(key, known)

    def parse(self, network: Any, path: str) -> dict[str, LayerSpec]:
        """Return the layers of a network dict; parsed at the first request.

        :param path: path of the layer that the network is part of, "" at the top
        :raises ConfigError: no network dict
        """
        key = path, id(network)
        if key not in self._parsed:
            specs = parse_network(network, path, self.behavior_version, self.default_target)
            self._parsed[key] = network, specs
        return dict(self._parsed[key][1])

    def all_specs(self) -> list[dict[str, LayerSpec]]:
        """Return the layers of all network dicts parsed so far."""
        return [specs for _, specs in self._parsed.values()]

    def resolve_dim(self, dim: Dim) -> Dim:
        """Return the definition of a declared dim, or the dim itself."""
        while True:
            before, dim = dim, dim.declared()
            dim = self.dims.get(dim, dim).with_operands(self.resolve_dim)
            if dim is before:
                return dim

    def finish_losses(self) -> None:
        """Plan all losses; their targets may add further layers, with further losses."""
        while self.open_losses:
            self.losses.append(plan_loss(*self.open_losses.pop(0), train=self.train))
