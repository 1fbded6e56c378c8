"""The tasks by name. A task is a function(config) -> exit code in a module of this folder, which is found by itself."""

from __future__ import annotations

from typing import Callable

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings import TaskSettings, check_settings

Task = Callable[[Config], int]

TASKS: Registry[Task] = Registry("task", "returnn_tf.tasks", plugins="returnn_tf.tasks")

#: Function decorator: makes a task known as ``task = "<name>"``. A name that ends in ":" stands for all that begin with
#: it.
register_task = TASKS.register


def find_task(name: str) -> Task:
    """The function of a task.

    :raises ConfigError: if there is none of this name
    """
    task = TASKS.find(name) or (TASKS.find(name.split(":")[0] + ":") if ":" in name else None)
    if task is None:
        raise ConfigError(TASKS.unknown(name))
    return task


def run_task(config: Config) -> int:
    """Does what the setting ``task`` says ("train" by default) and returns the exit code."""
    check_settings(config)
    return find_task(TaskSettings(config).task)(config)
