"""``returnn-tf check my.config``: checks all parts of a config, and prints the table of layers. Builds nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Optional

from returnn_tf.cli.check.migration import counted, migration, table
from returnn_tf.cli.check.whole_config import ConfigCheck
from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import read_config
from returnn_tf.compiler.describe import describe_config
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, nearest_name
from returnn_tf.config.options import listing_inert_options
from returnn_tf.config.settings import misspelt_keys
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.engine.pretrain.checks import describe
from returnn_tf.logging.text import paint, printable, wants_color
from returnn_tf.tasks.setting_checks import contradictions, settings_without_effect

NO_DATA, MIGRATE, STRICT = "--no-data", "--migrate", "--strict"
FLAGS = (NO_DATA, MIGRATE, STRICT)


@register_command(
    "check",
    "CONFIG ... [--graph OUT.svg] [--no-data] [--migrate] [--strict] [++key value ...]",
    "check all parts of a config, and show the layers of its network",
    details="  --graph OUT.svg   draw the network; the suffix selects the format\n"
    "  --no-data         don't open datasets, nor look for checkpoints to load\n"
    "  --migrate         list what is old, without effect, unsupported or different, with what to write today\n"
    "  --strict          each line of --migrate is an error, e.g. a misspelt setting\n"
    "  ++load_epoch N    the network of that epoch; default: the last one\n"
    "  ++task search     the network as it searches",
    group="start",
)
def run(args: list[str]) -> int:
    """Check all parts of the config, and print the layers of its network in ``load_epoch`` or ``epoch``.

    By default it is the network of the last epoch. All mistakes are reported, not only the first one.

    :param args: config files, options, ``++key value``
    """
    args, graph = take_option(args, "--graph")
    args, flags = take_flags(args, FLAGS)
    for argument in args:
        nearest = nearest_name(argument.partition("=")[0], [*FLAGS, "--graph"], cutoff=0.7)
        if argument.startswith("--") and nearest:
            nearest = "--graph OUT.svg" if nearest == "--graph" else nearest
            raise CommandError("check: unknown option %r. Did you mean %r?" % (argument, nearest))
    if not args:
        raise CommandError("check: which config? returnn-tf check my.config")
    config = read_config(args)
    check = ConfigCheck(config, with_data=NO_DATA not in flags)
    with listing_inert_options() if MIGRATE in flags else contextlib.nullcontext():
        check.run()
    for text in warnings(check.config) + check.notes:
        print(paint("Warning: " + printable(text, keep="\n\t"), "yellow", wants_color(sys.stderr)), file=sys.stderr)
    found = migration(check.config) if {MIGRATE, STRICT} & flags else []
    if check.schedule is not None and check.planned is not None and MIGRATE not in flags:
        print(_describe(check, graph))
    if MIGRATE in flags:
        print(table(found))
    check.raise_faults()
    if found and STRICT in flags:
        raise CommandError("--strict: %s" % counted(found) + ("" if MIGRATE in flags else "\n" + table(found)))
    return 0


def warnings(config: Config) -> list[str]:
    """Return the likely mistakes: misspelt settings, and those without effect."""
    misspelt = [
        "%s is not a known setting. Did you mean %r?" % (config.describe_source(key), suggestion)
        for key, suggestion in misspelt_keys(config)
    ]
    return [
        *misspelt,
        *config.stale_values(),
        *("setting without effect: %s" % setting for setting in settings_without_effect(config)),
        *contradictions(config),
    ]


def _describe(check: ConfigCheck, graph: Optional[str]) -> str:
    """Return the table of layers of an epoch, followed by the networks of all epochs if they differ."""
    assert check.schedule is not None and check.planned is not None
    settings = CheckpointSettings(check.config)
    shown = settings.load_epoch or settings.epoch or check.last_epoch
    text = describe_config(check.schedule.at(shown).config, graph=graph, color=wants_color(sys.stdout))
    text += "".join("\nnote: %s" % remark for remark in check.remarks)
    if len(check.planned) > 1:
        text += "\n\n" + describe(check.schedule, check.planned, 1, check.last_epoch)
    return text


def take_flags(args: list[str], names: Iterable[str]) -> tuple[list[str], set[str]]:
    """Return the arguments without some options that have no value, and those that are given."""
    return [arg for arg in args if arg not in names], set(args) & set(names)


def take_option(args: list[str], name: str) -> tuple[list[str], Optional[str]]:
    """Return the arguments without an option (``--name value`` or ``--name=value``), and its value."""
    rest: list[str] = []
    value = None
    pending = iter(args)
    for argument in pending:
        if argument == name:
            value = next(pending, None)
            if value is None:
                raise CommandError("command line: %s needs a value" % name)
        elif argument.startswith(name + "="):
            value = argument[len(name) + 1 :]
        else:
            rest.append(argument)
    return rest, value
