"""``returnn-tf train my.config``: the task "train", whatever task the config names."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import run as run_task
from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.config import ConfigError


@register_command(
    "train",
    "CONFIG ... [++key value ...]",
    "train the model of a config, or resume its training",
    details="The same as returnn-tf CONFIG ++task train. Why a network does not learn: returnn-tf run CONFIG --sanity.",
    group="train",
)
def run(args: list[str]) -> int:
    """Train.

    :param args: config files, then options and ``++key value``
    :return: the exit code of the task
    :raises ConfigError: there is no config, or another task is asked for
    """
    parsed = parse_arguments(args)
    if not parsed.files:
        raise ConfigError("train: which config? returnn-tf train my.config")
    tasks = [value for key, value in parsed.overrides if key == "task" and value != "train"]
    if tasks:
        instead = "--sanity" if tasks[0] == "sanity" else "++task " + tasks[0]
        raise ConfigError("train: for another task: returnn-tf run %s %s" % (" ".join(parsed.files), instead))
    return run_task([*args, "++task", "train"])
