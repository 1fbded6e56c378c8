"""The tools by name. A module is imported only when its tool is called, or when all are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.registry import Registry


@dataclass(frozen=True)
class Tool:
    """A tool.

    :param name: on the command line; its module has the same name, with underscores
    :param run: function(arguments) -> exit code
    :param parser: creates the parser of its arguments; the description begins with a line about it
    """

    name: str
    run: Callable[[list[str]], int]
    parser: Callable[[], CommandParser]

    @property
    def help(self) -> str:
        """Return a summary of one line."""
        return (self.parser().description or "").partition("\n")[0]


def _key(name: str) -> str:
    """Return a name with underscores: the scripts for RETURNN have dashes in some names, underscores in others."""
    return name.replace("-", "_")


TOOLS: Registry[Tool] = Registry("tool", "returnn_tf.compat.tool", key=_key, module_per_entry=True, max_listed=30)

Run = Callable[[list[str]], int]


def register_tool(name: str, parser: Callable[[], CommandParser]) -> Callable[[Run], Run]:
    """Decorate a function(arguments) -> exit code as a tool; for the parameters see `Tool`."""

    def decorate(run: Run) -> Run:
        TOOLS.add(Tool(name, run, parser), name, owner=run)
        return run

    return decorate
