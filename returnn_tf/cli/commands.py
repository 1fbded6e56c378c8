"""The subcommands: name -> module and help. A module is imported only when its command is called."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List


@dataclass(frozen=True)
class Command:
    """A subcommand: ``run(arguments) -> exit code`` in a module of this folder.

    :param module: its name
    :param arguments: what follows the name of the command, as usage lines show it
    :param help: one line
    :param details: what ``--help`` adds; a module with options of its own has a function ``help_text`` in place of it
    """

    module: str
    arguments: str
    help: str
    details: str = ""

    def load(self) -> Callable[[List[str]], int]:
        """Import the module and return its function."""
        run: Callable[[List[str]], int] = self._import().run
        return run

    def help_text(self, name: str) -> str:
        """Return what ``returnn-tf NAME --help`` prints."""
        own = getattr(self._import(), "help_text", None)
        if own is not None:
            return own()
        usage_line = ("usage: returnn-tf %s %s" % (name, self.arguments)).strip()
        summary = self.help[0].upper() + self.help[1:] + "."
        return "\n\n".join(part for part in (usage_line, summary, self.details) if part)

    def _import(self) -> Any:
        return importlib.import_module("returnn_tf.cli." + self.module)


COMMANDS: Dict[str, Command] = {
    "check": Command(
        "check",
        "CONFIG ... [--graph OUT.svg] [++key value ...]",
        "show the layers of a network, without building it",
        "  --graph OUT.svg   draw the network; the suffix selects the format\n"
        "  ++load_epoch N    the network of that epoch; default: the last one\n"
        "  ++task search     plan the search too",
    ),
    "layers": Command(
        "layers",
        "[CLASS ...]",
        "list all layer classes and losses, or explain some with their options",
    ),
    "doctor": Command(
        "doctor",
        "",
        "show what is installed, what is missing and what to do",
        "The exit code is 1 if something is missing without which nothing works.",
    ),
    "status": Command(
        "status",
        "MODEL_DIR_OR_PREFIX ... [--json | --point]",
        "how a running or dead training is doing, from its files",
        "  --json    all facts, for programs\n  --point   only the epoch and step at which a run would resume",
    ),
    "plot": Command(
        "plot",
        "LEARNING_RATE_FILE OUT.png",
        "draw scores and learning rates of a training",
        "The suffix of the output selects the format: .png, .pdf, .svg.",
    ),
    "submit": Command("submit", "CONFIG ... [--time T --gpus N ...]", "write a job for Slurm or SGE and submit it"),
    "native": Command("native", "build OP --output FILE | list", "compile native ops ahead of time, or list them"),
}

# what is done if the first argument is none of these: read configs and run a task
RUN = Command("run", "CONFIG ... [++key value ...]", "run the task which the config names: train, eval, forward, ...")


def usage() -> str:
    """The help text of the program."""
    rows = [("returnn-tf " + RUN.arguments, RUN.help)]
    rows += [("returnn-tf %s %s" % (name, command.arguments), command.help) for name, command in COMMANDS.items()]
    rows += [("returnn-tf --version", "show the version")]
    width = max(len(left) for left, _ in rows)
    lines = ["  %-*s  %s" % (width, left.strip(), right) for left, right in rows]
    return "\n".join(
        ["Trains and runs sequence models which a config describes.", ""]
        + lines
        + ["", "Any setting of the config can be overridden: returnn-tf my.config ++num_epochs 20 ++task eval"]
    )
