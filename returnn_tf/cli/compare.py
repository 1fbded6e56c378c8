"""``returnn-tf compare RUN1 RUN2 ...``: curves of several runs in one picture; tables of scores and differences."""

from __future__ import annotations

import os
from collections.abc import Sequence

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.runs.differences import differing_layers, differing_settings, folder_of_config, without_folders
from returnn_tf.cli.runs.run import Run, find_run
from returnn_tf.cli.runs.scores import effort_rows, score_rows
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import CommandDataError, CommandError, ConfigError, DataError
from returnn_tf.config.user_code import error_in_config
from returnn_tf.engine.monitoring.curves import draw_curves
from returnn_tf.engine.monitoring.pictures import check_matplotlib

_DOC = """
Compare runs of training: their curves in one picture, final and best scores, settings and layers that differ.

    returnn-tf compare out/small/model out/large/model              draws compare.png, prints the tables
    returnn-tf compare small=out/small/model large=large.config     with names of your own
    returnn-tf compare out/*/model --output curves.svg --force      replaces curves.svg

A run is a folder or prefix of checkpoints, a learning-rate file, or a config. Settings and network are those with which
the run was trained (recorded beside its checkpoints), or those of the config that is named.
"""
_DEFAULT = "compare.png"
Row = tuple[str, Sequence[str]]
_WIDEST = 44  # characters of a value; the rest is cut, unless all is asked for


@register_command(
    "compare",
    "RUN RUN ... [--output OUT.png] [--no-plot] [--full] [--force]",
    "compare runs: curves in one picture, scores, and settings that differ",
    own_help=lambda _: _parser().format_help(),
    group="look",
)
def run(args: list[str]) -> int:
    """Draw the curves and print the tables.

    :raises ConfigError: wrong arguments, a run that is not there, or an output that is
    :raises DataError: the files of a run are damaged
    """
    given = _parser().parse_args(args)
    if given.no_plot and given.output:
        raise CommandError("compare: --output and --no-plot exclude each other")
    target = None if given.no_plot else given.output or _DEFAULT
    if target is not None:
        check_matplotlib("--no-plot prints the tables only")
        if os.path.exists(target) and not given.force:
            raise CommandError("compare: %r exists already. --force replaces it; or choose another --output" % target)
    named = [split_name(argument) for argument in given.runs]
    if len(named) < 2:
        raise CommandError("compare: expected two runs or more: returnn-tf compare RUN1 RUN2 ...")
    runs = _read([path for _, path in named])
    names = [name or short for (name, path), short in zip(named, short_names([path for _, path in named]))]
    if len(set(names)) < len(names):
        raise CommandError("compare: two runs have the same name: %s" % ", ".join(names))
    if target is not None:
        draw_curves(dict(zip(names, (found.scored for found in runs))), width=10.0).save(target)
    print(_text(names, runs, full=given.full))
    if target is not None:
        print("\ncurves: %s" % target)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("compare", _DOC)
    parser.add_argument("runs", metavar="RUN", nargs="*", help="model folder or prefix, learning-rate file, or config")
    parser.add_argument("--output", metavar="OUT.png", help="the picture: .png, .pdf, .svg; default: %s" % _DEFAULT)
    parser.add_argument("--no-plot", action="store_true", help="only the tables")
    parser.add_argument("--full", action="store_true", help="long values in full")
    parser.add_argument("--force", action="store_true", help="replace an existing picture")
    return parser


def _read(paths: list[str]) -> list[Run]:
    """Return the runs; what can't be read is reported together, one line each.

    :raises DataError: only files are damaged or without scores
    :raises ConfigError: anything else is wrong
    """
    runs: list[Run] = []
    faults: list[str] = []
    kind: type[Exception] = CommandDataError
    for path in paths:
        try:
            found = find_run(path)
            if not found.scored:
                raise CommandDataError("%r: %s" % (path, found.without_scores()))
            runs.append(found)
        except (ConfigError, DataError) as exc:
            faults.append(str(exc))
            kind = CommandError if isinstance(exc, ConfigError) else kind
        except Exception as exc:
            place = error_in_config(exc)
            if place is None:
                raise
            faults.append(place)
            kind = CommandError
    if faults:
        raise kind("\n".join(["compare: %s can't be read:" % _count(len(faults), len(paths)), *faults]))
    return runs


def _count(wrong: int, total: int) -> str:
    return "%d of %d runs" % (wrong, total)


def _text(names: list[str], runs: list[Run], *, full: bool) -> str:
    parts = [table(["scores (epoch)", *names], score_rows(runs)), table(["training", *names], effort_rows(runs))]
    parts.append(_of_part("settings", "the settings", names, runs, full=full))
    parts.append(_of_part("network", "the networks", names, runs, full=full))
    lines = ["%s: %s; settings %s" % (name, found.path, found.source) for name, found in zip(names, runs)]
    return "\n\n".join(part for part in ["\n".join(lines), *parts] if part)


def _of_part(part: str, title: str, names: list[str], runs: list[Run], *, full: bool) -> str:
    """Return the table of what differs in a part of the facts, among the runs that know it."""
    there = [(name, found.facts) for name, found in zip(names, runs) if part in found.facts]
    known = [(name, facts[part]) for name, facts in there]
    unknown = ["%s of %s: unknown" % (title, name) for name, found in zip(names, runs) if part not in found.facts]
    text = ""
    if len(known) > 1:
        found_rows = (differing_settings if part == "settings" else differing_layers)([v for _, v in known])
        rows, moved = without_folders(found_rows, [folder_of_config(facts) for _, facts in there])
        text = table([part, *(name for name, _ in known)], rows, full=full) if rows else "%s are the same" % title
        if moved:
            text += "\nthe same below the folder of each config: %s" % ", ".join(moved)
    return "\n".join([text] * bool(text) + unknown)


def split_name(argument: str) -> tuple[str, str]:
    """Split ``NAME=PATH``; the name is "" if absent, or if a file has that whole name."""
    name, equals, path = argument.partition("=")
    if not equals or os.path.exists(argument):
        return "", argument
    if not name or not path:
        raise CommandError("%r: expected RUN or NAME=RUN" % argument)
    return name, path


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the distinctive parts of paths: without the common first and last ones."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    while len(parts) > 1 and all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1:
        parts = [each[1:] for each in parts]
    while len(parts) > 1 and all(len(each) > 1 for each in parts) and len({each[-1] for each in parts}) == 1:
        parts = [each[:-1] for each in parts]
    names = [os.sep.join(each) for each in parts] if len(paths) > 1 else [parts[0][-1]]
    return names if len(set(names)) == len(names) else ["%d %s" % each for each in enumerate(names, 1)]


def table(header: Sequence[str], rows: Sequence[Row], *, full: bool = False) -> str:
    """Return an aligned table.

    :param header: title of the first column, then the names of the runs
    :param rows: (first cell, those of the runs)
    :param full: whether long cells are shown in full
    """
    cells = [list(header), *([name, *(_cut(value, full) for value in values)] for name, values in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * min(sum(widths) + 2 * (len(widths) - 1), 120), *lines[1:]])


def _cut(value: str, full: bool) -> str:
    value = value.replace("\n", " ")
    return value if full or len(value) <= _WIDEST else value[: _WIDEST - 3] + "..."
