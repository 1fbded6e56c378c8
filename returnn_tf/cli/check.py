"""``returnn-tf check my.config``: the table of layers, from the plan alone."""

from __future__ import annotations

import sys
from typing import Optional

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import read_config
from returnn_tf.config import ConfigError, nearest_name
from returnn_tf.config.settings import (
    CheckpointSettings,
    TaskSettings,
    TrainingSettings,
    check_settings,
    ignored_settings,
)
from returnn_tf.engine.pretrain.checks import describe, planned_networks
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.search.beam import with_beam_size
from returnn_tf.engine.search.searcher import searched_node
from returnn_tf.logging.terminal import paint, wants_color
from returnn_tf.network.describe import describe_config
from returnn_tf.network.network import plan_from_config
from returnn_tf.tasks.search import output_layers


@register_command(
    "check",
    "CONFIG ... [--graph OUT.svg] [++key value ...]",
    "show the layers of a network, without building it",
    details="  --graph OUT.svg   draw the network; the suffix selects the format\n"
    "  ++load_epoch N    the network of that epoch; default: the last one\n"
    "  ++task search     plan the search too",
)
def run(args: list[str]) -> int:
    """Print the layers of the config's network in ``load_epoch`` or ``epoch``, by default in the last epoch.

    With ``++task search`` the plan of the search is checked too.

    :param args: config files, ``--graph OUT.svg``, ``++key value``
    """
    args, graph = take_option(args, "--graph")
    for argument in args:
        if argument.startswith("--") and nearest_name(argument.partition("=")[0], ["--graph"], cutoff=0.7):
            raise ConfigError("check: unknown option %r. Did you mean '--graph OUT.svg'?" % argument)
    if not args:
        raise ConfigError("check: which config? returnn-tf check my.config")
    config = read_config(args)
    check_settings(config)
    color = wants_color(sys.stdout)
    warnings = [
        "%s is not a known setting. Did you mean %r?" % (config.describe_source(key), suggestion)
        for key, suggestion in config.misspelt_keys()
    ]
    for text in warnings + ["setting without effect: %s" % setting for setting in ignored_settings(config)]:
        print(paint("Warning: " + text, "yellow", wants_color(sys.stderr)), file=sys.stderr)
    schedule = NetworkSchedule(config)
    last = max(TrainingSettings(config).num_epochs, schedule.pretrain_epochs + 1)
    steps = ""
    if len(schedule.distinct(1, last)) > 1:
        steps = "\n\n" + describe(schedule, planned_networks(schedule, 1, last), 1, last)
    shown = CheckpointSettings(config).load_epoch or CheckpointSettings(config).epoch or last
    if TaskSettings(config).task == "search":
        plan = plan_from_config(with_beam_size(schedule.at(shown).config), search=True)
        for layer in output_layers(config):
            searched_node(plan, layer)
    print(describe_config(schedule.at(shown).config, graph=graph, color=color) + steps)
    return 0


def take_option(args: list[str], name: str) -> tuple[list[str], Optional[str]]:
    """Return the arguments without an option (``--name value`` or ``--name=value``), and its value."""
    rest: list[str] = []
    value = None
    pending = iter(args)
    for argument in pending:
        if argument == name:
            value = next(pending, None)
            if value is None:
                raise ConfigError("command line: %s needs a value" % name)
        elif argument.startswith(name + "="):
            value = argument[len(name) + 1 :]
        else:
            rest.append(argument)
    return rest, value
