"""The subcommands: name -> module and help. A module is imported only when its command is called."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Callable, Dict, List


@dataclass(frozen=True)
class Command:
    """A subcommand: ``run(arguments) -> exit code`` in a module of this folder."""

    module: str
    arguments: str
    help: str

    def load(self) -> Callable[[List[str]], int]:
        """Its function."""
        return importlib.import_module("returnn_tf.cli." + self.module).run


COMMANDS: Dict[str, Command] = {
    "check": Command("check", "CONFIG [--graph OUT.svg]", "show the layers of a network, without building it"),
    "layers": Command("layers", "[CLASS]", "list all layer classes, or explain one with its options"),
    "settings": Command("settings", "[NAME]", "list all settings of a config, or explain one"),
    "doctor": Command("doctor", "", "say what is installed, what is missing and what to do"),
    "status": Command("status", "MODEL_DIR [--json]", "how a running or dead training is doing, from its files"),
    "plot": Command("plot", "LEARNING_RATE_FILE OUT.png", "draw scores and learning rates of a training"),
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
