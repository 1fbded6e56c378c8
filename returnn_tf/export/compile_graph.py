"""`compile_graph`: the graph of a config, without a checkpoint, as ``compile_tf_graph.py`` of RETURNN makes it."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import ExportError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.export.graph_ops import all_ops, check_ops, op_types
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.export.steps.graph import DECODER, GRAPH, StepGraph, add_steps
from returnn_tf.export.steps.loops import plan_for_steps
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.native.library import libraries_with
from returnn_tf.native.shared_files import files_of


@dataclasses.dataclass(frozen=True)
class GraphRequest:
    """The purpose of a graph.

    :param epoch: of ``get_network``
    :param train: whether dropout etc. are active; None: a placeholder decides
    :param losses: whether losses and errors are computed
    :param search: whether the beam search is a part of the graph
    :param summaries: name of an op with all summaries; "": none
    :param steps: path of the `rec` layer of which the graph computes single steps; "": it computes the network
    :param graph_counts: whether the graph counts these steps; None: by the kind of loop, see `add_steps`
    :param portable: no native ops, so that the graph needs no library
    """

    epoch: Optional[int] = None
    train: Optional[bool] = False
    losses: bool = False
    search: bool = False
    summaries: str = ""
    steps: str = ""
    graph_counts: Optional[bool] = None
    portable: bool = False


@dataclasses.dataclass(frozen=True)
class CompiledGraph:
    """A complete graph.

    :param steps: its description if it computes single steps
    :param libraries: native op -> library that a program must load before the graph
    :param files: by name, what ops look for in the folder of their library
    """

    builder: GraphBuilder
    steps: Optional[StepGraph]
    libraries: dict[str, str]
    files: dict[str, NDArray[np.uint8]]


def compile_graph(config: Config, request: GraphRequest) -> CompiledGraph:
    """Build the graph of a config.

    :raises ConfigError: no network, options that contradict each other, or a mistake in the network
    """
    _check(request)
    config = without_fine_tuning(_config_of_epoch(config, request.epoch))
    if request.steps:
        plan = plan_for_steps(config, request.steps)
    else:
        training = request.train is not False
        plan = plan_from_config(config, train=training, search=request.search, evaluate=request.losses)
    builder = GraphBuilder(plan, config, train=request.train, losses=request.losses, portable=request.portable)
    steps = None
    if request.steps:
        counter = None if request.graph_counts is None else GRAPH if request.graph_counts else DECODER
        steps = add_steps(builder, request.steps, counter=counter)
    else:
        builder.emit_network()
    if request.summaries:
        builder.add_summaries(request.summaries)
    graph_def: Any = builder.graph_def()
    check_ops(graph_def, "a graph for decoders")
    return CompiledGraph(builder, steps, libraries_with(op_types(graph_def)), files_of(all_ops(graph_def)))


def _check(request: GraphRequest) -> None:
    if request.train is not False and request.search:
        raise ExportError("--search 1 needs --train 0: a search ignores the targets that a training follows.")
    if not request.steps:
        if request.graph_counts is not None:
            raise ExportError("--update_i_in_graph is about single steps: it needs --rec_step_by_step LAYER.")
        return
    if request.search:
        raise ExportError("--rec_step_by_step needs --search 0: the search is the part of the decoder.")
    if request.train is not False or request.losses:
        raise ExportError("--rec_step_by_step needs --train 0 and --eval 0: a decoder has no targets.")


def _config_of_epoch(config: Config, epoch: Optional[int]) -> Config:
    """Return the config with the network of an epoch.

    :raises ConfigError: there is no network, or one that depends on the epoch while pretraining
    """
    settings = NetworkSettings(config)
    if epoch is None:
        if settings.network is None:
            hint = "Give --epoch, with which get_network is called." if settings.get_network else "Add a network."
            raise ExportError("The config has no network. %s" % hint)
        return derived(config, {}, hidden={"get_network": None})
    if TrainingSettings(config).pretrain:
        raise ExportError(
            "%s: with pretraining the network of an epoch is made from the one in the config. Omit --epoch for the "
            "network after pretraining." % TrainingSettings(config).describe_source("pretrain")
        )
    return NetworkSchedule(config).at(epoch).config
