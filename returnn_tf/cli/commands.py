"""The subcommands by name. A module is imported only when its command is called, or when all are listed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from returnn_tf.config.registry import Registry

Run = Callable[[list[str]], int]

#: Groups of commands in the help of the program -> title. Those of plug-ins may name none.
GROUPS = {
    "start": "Start",
    "train": "Train, and run other tasks",
    "look": "Look at runs",
    "use": "Use a trained model",
    "reference": "Reference",
    "": "From plug-ins",
}
#: Columns of a help text that is not printed to a terminal.
WIDTH = 80


@dataclass(frozen=True)
class Command:
    """A subcommand.

    :param name: as on the command line; that of its module in this folder
    :param run: function(arguments) -> exit code
    :param arguments: what follows the name of the command in usage lines
    :param help: one line
    :param details: further lines for ``--help``
    :param group: one of `GROUPS`
    :param own_help: for a command with its own options: function(arguments) -> complete text of ``--help``
    :param names: what its arguments may be, besides files
    """

    name: str
    run: Run
    arguments: str
    help: str
    details: str = ""
    group: str = ""
    own_help: Optional[Callable[[list[str]], str]] = None
    names: Optional[Callable[[], Sequence[str]]] = None

    def help_text(self, args: list[str]) -> str:
        """Return the text of ``returnn-tf NAME ARGS --help``."""
        if self.own_help is not None:
            return self.own_help(args)
        usage_line = ("usage: returnn-tf %s %s" % (self.name, self.arguments)).strip()
        summary = self.help[0].upper() + self.help[1:] + "." * (not self.help.endswith("."))
        return "\n\n".join(part for part in (usage_line, summary, self.details) if part)


COMMANDS: Registry[Command] = Registry(
    "command", "returnn_tf.cli", plugins="returnn_tf.commands", module_per_entry=True
)
#: The command if the first argument is not one: read configs and run a task.
RUN = "run"


def register_command(
    name: str,
    arguments: str,
    help: str,
    *,
    details: str = "",
    group: str = "",
    own_help: Optional[Callable[[list[str]], str]] = None,
    names: Optional[Callable[[], Sequence[str]]] = None,
) -> Callable[[Run], Run]:
    """Decorate a function(arguments) -> exit code as a subcommand; for the parameters see `Command`."""
    assert group in GROUPS, group

    def decorate(run: Run) -> Run:
        COMMANDS.add(Command(name, run, arguments, help, details, group, own_help, names), name, owner=run)
        return run

    return decorate


def usage() -> str:
    """Return the help text of the program."""
    commands = dict(COMMANDS.items())
    width = max(map(len, commands))
    lines = [
        "usage: returnn-tf COMMAND ...",
        "       returnn-tf %s" % commands[RUN].arguments,
        "",
        "Trains and runs sequence models described by a config. Without a command: run.",
    ]
    for group, title in GROUPS.items():
        rows = ["  %-*s  %s" % (width, name, c.help) for name, c in commands.items() if c.group == group]
        lines += ["", title, *rows] if rows else []
    lines += [
        "",
        "Any setting can be overridden: returnn-tf my.config ++num_epochs 20 ++task eval",
        "Options of a command: returnn-tf COMMAND --help. Version: returnn-tf --version",
    ]
    return fitted("\n".join(lines), WIDTH)


def fitted(text: str, width: int) -> str:
    """Return a help text in lines of at most ``width`` columns.

    Paragraphs with a longer line are filled again. The last column of a table continues below itself, or below its row.
    """
    lines: list[str] = []
    for block in _blocks(text.splitlines()):
        if all(len(line) <= width for line in block):
            lines += block
        elif not block[0][0].isspace() and not block[0].startswith("usage:"):
            lines += textwrap.wrap(" ".join(block), width, break_long_words=False, break_on_hyphens=False)
        else:
            lines += _fitted_row(block, width)
    return "\n".join(lines)


def _blocks(lines: Sequence[str]) -> list[list[str]]:
    """Divide lines into paragraphs, and rows of a table with the lines that continue their last column."""
    blocks: list[list[str]] = []
    for line in lines:
        indent = _indent(line)
        continued = bool(line and blocks and blocks[-1][0]) and indent == (_column(blocks[-1][0]) if indent else 0)
        if continued and (indent or not (blocks[-1][0][0].isspace() or line.startswith("usage:"))):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _column(line: str) -> int:
    """Return the position of the second column of a row, or 0."""
    row = re.match(r"\s+\S.*?\s{2,}(?=\S)", line)
    return row.end() if row else 0


def _fitted_row(block: Sequence[str], width: int) -> list[str]:
    """Return a row of a table, or a usage line, in lines of at most ``width`` columns."""
    first = block[0]
    column = _column(first)
    left, right = first[:column], " ".join([first[column:], *(line.strip() for line in block[1:])]).strip()
    if column > width // 2:
        column = _indent(first) + 4
        return [left.rstrip(), *_wrapped(right, " " * column, " " * column, width)]
    return _wrapped(right.strip(), left or " " * _indent(first), " " * (column or _indent(first) + 4), width)


def _wrapped(text: str, first: str, other: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )
