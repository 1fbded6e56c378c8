"""The template of one layer dict whose sources are given templates, for programs that compose network dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.planning.compilation import Compilation
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.planner import Place, Planner
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.config.read_only import read_only
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Data
from returnn_tf.tensor.dim_binding import DeclaredDims


@dataclasses.dataclass(frozen=True)
class PlannedLayer:
    """A layer that was planned alone.

    :param dims: what its options say about the dims that were declared
    """

    node: Node
    dims: DeclaredDims
    _planner: Planner

    def part(self, name: str) -> Node:
        """Return a layer or an output inside of it.

        :raises ConfigError: it has no such part
        """
        path = self.node.path
        return self._planner.resolve("%s/%s" % (path, name), "Layer %r" % path)


def plan_layer(
    name: str,
    options: Mapping[str, Any],
    given: Mapping[str, Data],
    states: Mapping[str, HiddenState],
    extern_data: Mapping[str, Data],
    *,
    semantics: Semantics,
    train: bool = False,
    in_step: bool = False,
) -> PlannedLayer:
    """Plan a layer.

    :param name: of the layer, for messages
    :param options: the layer dict
    :param given: the templates of the layers that its options name
    :param states: the layouts of the states of those that are recurrent
    :param extern_data: templates by data key
    :param train: whether dropout etc. are active
    :param in_step: whether the layer is one of a step of a loop
    :raises ConfigError: with the name of the layer, what is wrong and how to fix it
    """
    compilation = Compilation(read_only({name: options}, "network"), extern_data, semantics=semantics, train=train)
    specs = dict(compilation.specs)
    nodes: dict[str, Node] = {}
    for key, data in given.items():
        specs[key] = LayerSpec(key, key, Layer, {}, ())
        nodes[key] = Node(key, Layer(), "")
        nodes[key].output = data.map_dims(compilation.dims.resolve)
        nodes[key].hidden_state = states.get(key)
    place = Place(compilation.nodes, compilation.results, search=False, in_step=in_step)
    planner = Planner(compilation, Scope(specs, extern=compilation.extern_data), place, given=nodes)
    return PlannedLayer(planner.node(name), compilation.dims, planner)
