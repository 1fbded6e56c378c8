"""Planning of a whole network dict. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.graph.reuse import ReuseLevel
from returnn_tf.network.loops.step_network import plan_step_network
from returnn_tf.network.planning.build_state import BuildState
from returnn_tf.network.planning.builder import NetworkBuilder
from returnn_tf.network.planning.checks import check_param_names
from returnn_tf.network.planning.notes import unneeded_mistakes
from returnn_tf.network.planning.plan import Plan
from returnn_tf.network.planning.reuse import decide_all, open_params, with_inner
from returnn_tf.network.planning.reuse_option import owners_of
from returnn_tf.tensor import Data


def plan_network(
    network: Mapping[str, Any],
    extern_data: Mapping[str, Data],
    *,
    behavior_version: int = 0,
    train: bool = False,
    search: bool = False,
    evaluate: bool = False,
    default_target: str = "classes",
    config: Optional[Config] = None,
) -> Plan:
    """Plan a network dict. The plan is immutable afterwards.

    :param extern_data: templates by data key
    :param train: whether dropout etc. are active; losses in loops exist
    :param search: whether to search instead of following the targets
    :param evaluate: whether losses in loops exist without ``train``, for scores of other data
    :param default_target: for losses without the option target
    :param config: the `Config` of the network, for functions defined in it
    :raises ConfigError: with the path of the layer, what is wrong and how to fix it
    """
    state = BuildState(extern_data, behavior_version, train or evaluate, search, default_target)
    builder = NetworkBuilder(network, state, plan_step_network)
    builder.build()
    _declare_a_batch_size(builder, state)
    _finish(state)
    check_param_names(state.nodes)
    order = list(builder.specs)
    state.losses.sort(key=lambda loss: order.index(loss.name.split("/")[0]) if loss.name.split("/")[0] in order else 0)
    plan = Plan(
        state.nodes,
        state.outputs,
        state.losses,
        state.extern,
        state.extern_data,
        behavior_version,
        train,
        search,
        config,
    )
    planned = {node.path for node in plan.all_nodes()}
    mistakes = unneeded_mistakes(state.all_specs(), planned, state.extern_data)
    plan = dataclasses.replace(plan, mistakes=mistakes, omitted_losses=list(state.omitted_losses))
    _freeze_params(plan)
    for node in plan.all_nodes():
        node.freeze()
    for loss in plan.losses:
        loss.loss.freeze()
    return _without_dead_layers(plan)


def _finish(state: BuildState) -> None:
    """Plan the losses and the layers that provide parameters; either may add layers with more of both."""
    done: set[ReuseLevel] = set()
    while True:
        state.finish_losses()
        levels = {level for *_, param in open_params(with_inner(state.nodes)) for level in param.levels} - done
        if not levels and not state.late_owners:
            break
        for level in levels:
            list(owners_of(level))
        done |= levels
        for user, find in state.late_owners:
            owner = find()
            if owner is not None and owner in state.nodes and owner not in user.param_deps:
                user.param_deps.append(owner)
        state.late_owners.clear()
    decide_all(state.nodes)


def _declare_a_batch_size(builder: NetworkBuilder, state: BuildState) -> None:
    """Declare the first input with a batch axis as the source of the batch size, for layers with one but no input."""
    keys = [key for key, data in state.extern_data.items() if data.batch_axis is not None]
    if keys and not set(keys) & set(state.extern) and any(node.output.batch_axis is not None for node in state.nodes):
        builder.extern_node(keys[0])


def _freeze_params(plan: Plan) -> None:
    """Freeze the parameters of layers inside a layer that is not trainable."""
    frozen = tuple(node.path + "/" for node in plan.all_nodes() if node.layer.trainable is False)
    if frozen:
        for spec in plan.params.values():
            if spec.layer_path.startswith(frozen):
                spec.trainable = False


def _without_dead_layers(plan: Plan) -> Plan:
    """Leave out layers that no output and no loss needs, e.g. those that only gave an n_out."""
    alive = plan.needed(plan.roots(), plan.losses, params=True)
    return dataclasses.replace(
        plan,
        nodes=[node for node in plan.nodes if node in alive],
        extern={key: node for key, node in plan.extern.items() if node in alive},
    )
