"""``returnn-tf check my.config``: checks all parts of a config, and prints the layers, or JSON. Builds nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import Any, Optional, TextIO

from returnn_tf.cli.check.diagnostics import locator_of
from returnn_tf.cli.check.document import document, failure, stdout_for_json
from returnn_tf.cli.check.fixes import certain_fixes, is_suggestion, write
from returnn_tf.cli.check.memory import Memory, estimate
from returnn_tf.cli.check.migration import MigrationNote, counted, migration, table
from returnn_tf.cli.check.whole_config import ConfigCheck, Fault
from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.snippet import columns_of_terminal
from returnn_tf.compiler.describe import describe_and_draw, draw
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, nearest_name
from returnn_tf.config.options import listing_inert_options
from returnn_tf.config.settings import misspelt_keys
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.pretrain.checks import describe
from returnn_tf.logging.log import log
from returnn_tf.logging.text import counted as counted_names
from returnn_tf.logging.text import paint, printable, wants_color
from returnn_tf.tasks.setting_checks import contradictions, settings_without_effect

NO_DATA, MEMORY, MIGRATE, STRICT, JSON, FIX = "--no-data", "--memory", "--migrate", "--strict", "--json", "--fix"
FLAGS = (NO_DATA, MEMORY, MIGRATE, STRICT, JSON, FIX)


@register_command(
    "check",
    "CONFIG ... [--graph OUT.svg] [--no-data] [--memory] [--migrate] [--strict] [--json] [--fix] [++key value ...]",
    "check all parts of a config, and show the layers of its network",
    details="  --graph OUT.svg   draw the network; the suffix selects the format\n"
    "  --no-data         don't open datasets, nor look for checkpoints to load\n"
    "  --memory          estimate the memory of a step of training, for batches of sequences of some lengths\n"
    "  --migrate         list what is old, without effect, unsupported or different, with what to write today\n"
    "  --strict          each line of --migrate is an error, e.g. a misspelt setting\n"
    "  --json            all mistakes, layers, parameters, losses and stages of pretraining, for programs\n"
    "  --fix             correct misspelt options, classes and settings in the config, with --migrate older names,\n"
    "                    too; shows the differences, keeps a copy (.orig)\n"
    "  ++load_epoch N    the network of that epoch; default: the last one\n"
    "  ++task search     the network as it searches",
    group="start",
)
def run(args: list[str]) -> int:
    """Check all parts of the config, and print the layers of its network in ``load_epoch`` or ``epoch``.

    By default it is the network of the last epoch. All mistakes are reported, not only the first one.

    :param args: config files, options, ``++key value``
    """
    if FIX in args:
        return _fix(args)
    if JSON not in args:
        return _finish(_print(_collect(args)))
    with stdout_for_json() as file, log.collected_warnings() as logged:
        try:
            found = _collect(args)
            if found.graph is not None and found.check.plan is not None:
                draw(found.check.plan, found.graph)
            warned = [*found.warnings, *(text for text in logged if text not in found.warnings)]
            _write(document(found.check, warned, found.migration, found.memory(), strict=STRICT in found.flags), file)
        except BrokenPipeError:
            raise
        except Exception as exc:
            _write(failure(exc, logged), file)
            raise
    return _finish(found)


def _fix(args: list[str]) -> int:
    """Write what is certain of the suggestions into the config, until there is no more; then check as without."""
    if JSON in args:
        raise CommandError("check: --fix and --json don't go together: run --fix first")
    copies: dict[str, str] = {}
    count = 0
    while True:  # a mistake in a layer can hide others
        found = _collect(args)
        check = found.check
        faults = [*check.faults, *map(Fault, found.warnings), *check.notes]
        fixes = certain_fixes(check.given, locator_of(check), faults, found.migration)
        if not fixes:
            break
        print(write(check.given, fixes, copies), end="")
        count += len(fixes)
    kept = ", ".join("%s is kept as %s" % (path, copy) for path, copy in copies.items())
    print("%s corrected%s\n" % (counted_names(count, "name"), "; %s" % kept if kept else ""))
    left = sum(is_suggestion(fault) for fault in faults)
    if left:
        text = "--fix: %s left to you, where the place or the spelling is not certain" % counted_names(
            left, "suggestion"
        )
        print(text, file=sys.stderr)
    return _finish(_print(found))


def _write(result: dict[str, Any], file: TextIO) -> None:
    file.write(json.dumps(result, indent=1, allow_nan=False) + "\n")
    file.flush()


@dataclasses.dataclass(frozen=True)
class _Found:
    """What the check of a config found.

    :param warnings: those that the check itself did not find in a part of the config
    :param migration: with ``--migrate`` or ``--strict``
    :param graph: file name of a picture to draw
    """

    check: ConfigCheck
    flags: set[str]
    warnings: list[str]
    migration: list[MigrationNote]
    graph: Optional[str]

    def memory(self) -> Optional[Memory]:
        """Return the estimate of ``--memory``; None if it is not asked for, or there is no network to train."""
        check = self.check
        if MEMORY not in self.flags or check.schedule is None or check.plan is None or check.faults:
            return None
        if not check.plan.train:
            raise CommandError(
                "check: --memory is about training, and task %r trains no network" % TaskSettings(check.config).task
            )
        return estimate(check.plan, check.schedule.at(check.shown_epoch).config)

    def strict_error(self) -> Optional[CommandError]:
        """Return the error of ``--strict``, if there is anything to migrate."""
        if not (self.migration and STRICT in self.flags):
            return None
        listed = "" if {MIGRATE, JSON} & self.flags else "\n" + table(self.migration)
        return CommandError("--strict: %s%s" % (counted(self.migration), listed))


def _collect(args: list[str]) -> _Found:
    """Read the command line and the config, and check its parts."""
    args, graph = take_option(args, "--graph")
    args, flags = take_flags(args, FLAGS)
    for argument in args:
        nearest = nearest_name(argument.partition("=")[0], [*FLAGS, "--graph"], cutoff=0.7)
        if argument.startswith("--") and nearest:
            nearest = "--graph OUT.svg" if nearest == "--graph" else nearest
            raise CommandError("check: unknown option %r. Did you mean %r?" % (argument, nearest))
    if not args:
        raise CommandError("check: which config? returnn-tf check my.config")
    check = ConfigCheck(read_config(args), with_data=NO_DATA not in flags)
    with listing_inert_options() if MIGRATE in flags else contextlib.nullcontext():
        check.run()
        found = migration(check.config) if {MIGRATE, STRICT} & flags else []
        return _Found(check, flags, warnings(check.config), found, graph)


def _print(found: _Found) -> _Found:
    """Print warnings, and the table of layers or what to migrate."""
    check, flags = found.check, found.flags
    locator = locator_of(check)
    for note in [*map(Fault, found.warnings), *check.notes]:
        text = printable(locator.shown(note.text, note.network, width=columns_of_terminal()), keep="\n\t")
        print(paint("Warning: " + text, "yellow", wants_color(sys.stderr)), file=sys.stderr)
    if check.plan is not None and MIGRATE not in flags:
        print(_describe(check, check.plan, found.graph))
    memory = found.memory()
    if memory is not None:
        print("\n" + memory.table())
    if MIGRATE in flags:
        print(table(found.migration))
    return found


def _finish(found: _Found) -> int:
    """Raise what is wrong, else return the exit code."""
    if found.check.faults:
        locator, width = locator_of(found.check), columns_of_terminal()
        found.check.raise_faults(lambda fault: locator.shown(fault.text, fault.network, width=width))
    error = found.strict_error()
    if error is not None:
        raise error
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


def _describe(check: ConfigCheck, plan: Plan, graph: Optional[str]) -> str:
    """Return the table of layers of an epoch, followed by the networks of all epochs if they differ."""
    assert check.schedule is not None and check.planned is not None
    text = describe_and_draw(plan, graph=graph, color=wants_color(sys.stdout))
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
