"""``returnn-tf tool NAME``: tools which are also in ``tools/``, under the names of RETURNN's scripts."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.compat.tool.registry import TOOLS
from returnn_tf.config.errors import CommandError


def help_of(args: list[str]) -> str:
    """Return the help of the tool that the arguments name, else that of all."""
    tool = TOOLS.find(args[0]) if args else None
    if tool is not None:
        return tool.parser().format_help()
    found = [tool for _, tool in TOOLS.items()]
    width = max(len(tool.name) for tool in found)
    lines = ["usage: returnn-tf tool NAME ...", "", "Run a tool on data, checkpoints, or files of a run.", ""]
    lines += ["  %-*s  %s" % (width, tool.name, tool.help) for tool in found]
    return "\n".join([*lines, "", "All options of one of them: returnn-tf tool NAME --help"])


@register_command(
    "tool",
    "NAME ...",
    "run a tool: dump-dataset, hdf-dump, calculate-word-error-rate, ...",
    own_help=help_of,
    names=lambda: [tool.name for _, tool in TOOLS.items()],
    group="use",
)
def run(args: list[str]) -> int:
    """Run one of the tools.

    :param args: its name and arguments
    :raises ConfigError: there is no such tool
    """
    if not args:
        raise CommandError("tool: which one? %s" % ", ".join(name for name, _ in TOOLS.items()))
    return TOOLS.get(args[0], "tool").run(args[1:])
