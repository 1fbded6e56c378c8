"""The subcommands by name. A module is imported only when its command is called, or when all are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from returnn_tf.config.registry import Registry

Run = Callable[[list[str]], int]


@dataclass(frozen=True)
class Command:
    """A subcommand.

    :param name: as on the command line; that of its module in this folder
    :param run: function(arguments) -> exit code
    :param arguments: what follows the name of the command in usage lines
    :param help: one line
    :param details: further lines for ``--help``
    :param own_help: for a command with options of its own: function(arguments) -> complete text of ``--help``
    """

    name: str
    run: Run
    arguments: str
    help: str
    details: str = ""
    own_help: Optional[Callable[[list[str]], str]] = None

    def help_text(self, args: list[str]) -> str:
        """Return the text of ``returnn-tf NAME ARGS --help``."""
        if self.own_help is not None:
            return self.own_help(args)
        usage_line = ("usage: returnn-tf %s %s" % (self.name, self.arguments)).strip()
        summary = self.help[0].upper() + self.help[1:] + "."
        return "\n\n".join(part for part in (usage_line, summary, self.details) if part)


COMMANDS: Registry[Command] = Registry(
    "command", "returnn_tf.cli", plugins="returnn_tf.commands", module_per_entry=True
)
#: The command if the first argument is not one: read configs and run a task.
RUN = "run"


def register_command(
    name: str, arguments: str, help: str, *, details: str = "", own_help: Optional[Callable[[list[str]], str]] = None
) -> Callable[[Run], Run]:
    """Decorate a function(arguments) -> exit code as a subcommand; for the parameters see `Command`."""

    def decorate(run: Run) -> Run:
        COMMANDS.add(Command(name, run, arguments, help, details, own_help), name, owner=run)
        return run

    return decorate


def usage() -> str:
    """Return the help text of the program."""
    rows = [("returnn-tf " + COMMANDS[RUN].arguments, COMMANDS[RUN].help)]
    rows += [("returnn-tf %s %s" % (name, c.arguments), c.help) for name, c in COMMANDS.items() if name != RUN]
    rows += [("returnn-tf --version", "show the version")]
    width = max(len(left) for left, _ in rows)
    lines = ["  %-*s  %s" % (width, left.strip(), right) for left, right in rows]
    return "\n".join(
        ["Trains and runs sequence models described by a config.", ""]
        + lines
        + ["", "Any setting of the config can be overridden: returnn-tf my.config ++num_epochs 20 ++task eval"]
    )
