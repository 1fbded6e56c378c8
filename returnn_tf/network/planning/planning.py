"""A whole network dict as a plan. No TensorFlow."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from returnn_tf.graph.node import Node
from returnn_tf.network.planning.build_state import BuildState, no_loops
from returnn_tf.network.planning.builder import NetworkBuilder
from returnn_tf.network.planning.checks import check_param_names
from returnn_tf.network.planning.plan import Plan
from returnn_tf.tensor import Data


def build_plan(
    network: Mapping[str, Any],
    extern_data: Mapping[str, Data],
    *,
    behavior_version: int = 0,
    train: bool = False,
    search: bool = False,
    default_target: str = "classes",
    plan_loop: Callable[[Node, NetworkBuilder], Node] = no_loops,
) -> Plan:
    """The plan of a network dict.

    :param extern_data: templates by data key
    :param default_target: for losses without the option target
    :param plan_loop: plans the network inside of a `rec` layer
    :raises ConfigError: with the path of the layer, what is wrong and how to mend it
    """
    state = BuildState(extern_data, behavior_version, train, search, default_target)
    state.plan_loop = plan_loop
    builder = NetworkBuilder(network, state)
    builder.build()
    _declare_a_batch_size(builder, state)
    state.finish_losses()
    check_param_names(state.nodes)
    order = list(builder.specs)
    state.losses.sort(key=lambda loss: order.index(loss.name.split("/")[0]) if loss.name.split("/")[0] in order else 0)
    plan = Plan(
        state.nodes, state.outputs, state.losses, state.extern, state.extern_data, behavior_version, train, search
    )
    _freeze_params(plan)
    return plan


def _declare_a_batch_size(builder: NetworkBuilder, state: BuildState) -> None:
    """Layers may have a batch axis without any input: then the first input that has one tells how long it is."""
    keys = [key for key, data in state.extern_data.items() if data.batch_axis is not None]
    if keys and not set(keys) & set(state.extern) and any(node.output.batch_axis is not None for node in state.nodes):
        builder.extern_node(keys[0])


def _freeze_params(plan: Plan) -> None:
    """Parameters of layers inside of a layer which is not trainable are not trained either."""
    frozen = [node.path + "/" for node in plan.all_nodes() if node.layer.trainable is False]
    for spec in plan.params.values():
        if any(spec.layer_path.startswith(path) for path in frozen):
            spec.trainable = False
