"""The state that all planners of one network share. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.loop_memory import LoopMemory
from returnn_tf.compiler.planning.losses import plan_loss
from returnn_tf.compiler.planning.parse import LayerSpec, parse_network
from returnn_tf.compiler.planning.results import Results
from returnn_tf.config.errors import SourceError, did_you_mean
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.semantics import Semantics
from returnn_tf.graph.source import SourceLayer
from returnn_tf.tensor import SEQ_TAG, Data, Dim, batch_dim
from returnn_tf.tensor.dim_binding import DeclaredDims


class Compilation:
    """The state that all planners of one network share: its inputs, its dims, its nodes and its results.

    :param network: the network dict
    :param extern_data: templates by data key
    :param sized_dims: declared dims -> the dims with the sizes that ``extern_data`` gives them
    :param empty_data_keys: data keys that do not exist -> the reason, for messages
    :param default_target: for losses without the option target
    :param semantics: what the settings say about its values
    :param train: whether the network is for training
    :param evaluate: whether losses of layers in loops are computed without that
    :param whole_loops: paths of `rec` layers of which no layer is moved out of the loop
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        extern_data: Mapping[str, Data],
        *,
        sized_dims: Optional[Mapping[Dim, Dim]] = None,
        empty_data_keys: Optional[Mapping[str, str]] = None,
        default_target: str = "classes",
        semantics: Semantics,
        train: bool = False,
        search: bool = False,
        evaluate: bool = False,
        whole_loops: Iterable[str] = (),
    ) -> None:
        self.extern_data = dict(extern_data)
        self.dims = DeclaredDims(self.extern_data, sized_dims or {})
        self.extern_data.update({key: data.map_dims(self.dims.resolve) for key, data in extern_data.items()})
        self.default_target = default_target
        self.semantics = semantics
        self.train = train
        self.loop_losses = train or evaluate
        self.search = search
        self.whole_loops = frozenset(whole_loops)
        self.nodes: list[Node] = []
        #: The inputs that are used, by data key.
        self.extern: dict[str, Node] = {}
        self.results = Results()
        self.losses: list[LossNode] = []
        #: The paths of the layers that are being planned, each for the one before.
        self.open_layers: list[str] = []
        #: The planner of the network inside a layer; of a loop, that of the layers after it.
        self.inner: dict[Node, NetworkPlanner] = {}
        #: Layers whose parameters must exist though nothing may need the layer: (user, function that plans the layer).
        self.late_owners: list[tuple[Node, Callable[[], Optional[Node]]]] = []
        self.loops = LoopMemory()
        #: The layers in loops whose losses are not computed in this mode; an ordered set.
        self.omitted_losses: dict[str, None] = {}
        self._empty_data_keys = dict(empty_data_keys or {})
        #: By path and identity of a network dict: the dict, kept alive so that its id stays unique, and its
        #: layers. A step network is planned several times, with the same dicts inside.
        self._parsed: dict[tuple[str, int], tuple[Any, dict[str, LayerSpec]]] = {}
        #: The layers of the network dict, those of extra networks included.
        self.specs = self.parse(network, "")

    def key_hint(self, key: str, known: Iterable[str]) -> str:
        """Return the reason why a data key is missing, or else the nearest known name."""
        return self._empty_data_keys.get(key) or did_you_mean(key, known)

    def parse(self, network: Any, path: str) -> dict[str, LayerSpec]:
        """Return the layers of a network dict; parsed at the first request.

        :param path: path of the layer that the network is part of, "" at the top
        :raises ConfigError: no network dict
        """
        key = path, id(network)
        if key not in self._parsed:
            specs = parse_network(network, path, self.semantics.behavior_version, self.default_target)
            self._parsed[key] = network, specs
        return dict(self._parsed[key][1])

    def all_specs(self) -> list[dict[str, LayerSpec]]:
        """Return the layers of all network dicts parsed so far."""
        return [specs for _, specs in self._parsed.values()]

    def extern_node(self, key: str) -> Node:
        """Return the input node of a data key; that of the names of the sequences need not be declared."""
        if key == SEQ_TAG:
            self.extern_data.setdefault(key, Data((batch_dim,), "string"))
        if key not in self.extern_data:
            raise SourceError(
                "there is no data key %r in extern_data. %s" % (key, self.key_hint(key, self.extern_data))
            )
        if key not in self.extern:
            layer = SourceLayer()
            layer.data_key = key
            node = Node("data" if key == "data" else "data:%s" % key, layer, "", extern_key=key)
            node.output = self.extern_data[key]
            self.extern[key] = node
            self.nodes.append(node)
        return self.extern[key]

    def plan_losses(self) -> None:
        """Plan all losses; their targets may add further layers, with further losses."""
        while True:
            taken = self.results.take_next_loss()
            if not taken:
                return
            self.losses += [plan_loss(result, train=self.train) for result in taken]
