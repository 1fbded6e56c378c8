"""Planning of a whole network dict. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import check_param_names, share_extra_params
from returnn_tf.compiler.planning.compilation import Compilation
from returnn_tf.compiler.planning.fine_tuning import fine_tune
from returnn_tf.compiler.planning.layer_options import owners_of
from returnn_tf.compiler.planning.notes import remarks, unknown_targets, unneeded_mistakes
from returnn_tf.compiler.planning.parse import SEARCH_PREFIX, split_extra
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.planning.planner import Place, Planner
from returnn_tf.compiler.planning.reuse import decide_all, open_params, with_inner
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.config.read_only import read_only
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph.fine_tuning import FineTuning
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Data, Dim


def plan_network(
    network: Mapping[str, Any],
    extern_data: Mapping[str, Data],
    *,
    sized_dims: Optional[Mapping[Dim, Dim]] = None,
    semantics: Semantics,
    train: bool = False,
    search: bool = False,
    evaluate: bool = False,
    searched_layers: Sequence[str] = (),
    whole_loops: Sequence[str] = (),
    default_target: str = "classes",
    empty_data_keys: Optional[Mapping[str, str]] = None,
    fine_tuning: Optional[FineTuning] = None,
) -> Plan:
    """Plan a network dict. The plan is immutable afterwards.

    :param extern_data: templates by data key
    :param sized_dims: declared dims -> the dims with the sizes that ``extern_data`` gives them
    :param semantics: what the settings say about its values
    :param train: whether dropout etc. are active; losses in loops exist
    :param search: whether to search instead of following the targets
    :param evaluate: whether losses in loops exist without ``train``, for scores of other data
    :param searched_layers: layers of a second network that searches, whose losses are computed in training too
    :param whole_loops: paths of `rec` layers of which no layer is moved out of the loop
    :param default_target: for losses without the option target
    :param empty_data_keys: keys that do not exist -> the reason, for messages
    :param fine_tuning: which parameters are trained, by adapters or not
    :raises ConfigError: with the path of the layer, what is wrong and how to fix it
    """
    compilation = Compilation(
        read_only(network, "network"),
        extern_data,
        sized_dims=sized_dims,
        empty_data_keys=empty_data_keys,
        default_target=default_target,
        semantics=semantics,
        train=train,
        search=search,
        evaluate=evaluate,
        whole_loops=whole_loops,
    )
    planner = _plan_layers(compilation, searched_layers)
    _declare_a_batch_size(compilation)
    _finish(compilation)
    order = {name: position for position, name in enumerate(planner.scope.specs)}
    compilation.losses.sort(key=lambda loss: order.get(_top_layer(loss.name), 0))
    plan = Plan(
        compilation.nodes,
        compilation.results.outputs(),
        compilation.losses,
        compilation.extern,
        compilation.extern_data,
        semantics,
        train,
        search,
    )
    planned = {node.path for node in plan.all_nodes()}
    mistakes = unneeded_mistakes(compilation.all_specs(), planned, compilation.extern_data) + remarks(plan.all_nodes())
    mistakes += unknown_targets(compilation.all_specs(), compilation.extern_data, _own_target(default_target))
    plan = dataclasses.replace(plan, mistakes=mistakes, omitted_losses=list(compilation.omitted_losses))
    check_param_names(list(plan.nodes))
    plan = _without_dead_layers(plan)
    share_extra_params(list(plan.all_nodes()))
    _freeze_params(plan)
    if fine_tuning is not None:
        fine_tune(plan, fine_tuning)
    for node in plan.all_nodes():
        node.seal()
    for loss in plan.losses:
        loss.loss.seal("The loss %r of layer %r" % (loss.loss.class_name, loss.name))
    return plan


def _plan_layers(compilation: Compilation, searched_layers: Sequence[str]) -> Planner:
    """Plan all layers that outputs and losses need, and return the planner of the main network."""
    layers = {name: spec for name, spec in compilation.specs.items() if split_extra(name) is None}
    place = Place(compilation.nodes, compilation.results, compilation.search)
    planner = Planner(compilation, Scope(layers, extern=compilation.extern_data), place)
    planner.plan()
    for name, spec in compilation.specs.items():
        if split_extra(name) is not None and planner.is_wanted(spec):
            planner.resolve(name, spec.where)
    if compilation.loop_losses and not compilation.search:
        for name in searched_layers:
            planner.extra_network(SEARCH_PREFIX).resolve(name, "search_train_network_layers")
    return planner


def _own_target(target: str) -> str:
    """Return the setting ``target`` if it is another one than by default, else "": then nothing may look it up."""
    return "" if target == NetworkSettings.declared()["target"].default else target


def _top_layer(name: str) -> str:
    """Return the name in the network dict of a layer or of one that encloses it, without that of an extra network."""
    top = name.split("/")[0]
    extra = split_extra(top)
    return top if extra is None else extra[1]


def _finish(compilation: Compilation) -> None:
    """Plan the losses and the layers that provide parameters; either may add layers with more of both."""
    done: set[ReuseLevel] = set()
    while True:
        compilation.plan_losses()
        levels = {level for *_, param in open_params(with_inner(compilation.nodes)) for level in param.levels} - done
        if not levels and not compilation.late_owners:
            break
        for level in levels:
            list(owners_of(level))
        done |= levels
        for user, find in compilation.late_owners:
            owner = find()
            if owner is not None and owner in compilation.nodes and owner not in user.param_deps:
                user.param_deps.append(owner)
        compilation.late_owners.clear()
    decide_all(compilation.nodes)


def _declare_a_batch_size(compilation: Compilation) -> None:
    """Declare the first input with a batch axis as the source of the batch size, for layers with one but no input."""
    keys = [key for key, data in compilation.extern_data.items() if data.batch_axis is not None]
    if (
        keys
        and not set(keys) & set(compilation.extern)
        and any(node.output.batch_axis is not None for node in compilation.nodes)
    ):
        compilation.extern_node(keys[0])


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
