"""Registry of tasks: functions(config) -> exit code in modules of this folder, which are discovered."""

from __future__ import annotations

from typing import Callable

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings import TaskSettings, check_settings

Task = Callable[[Config], int]

TASKS: Registry[Task] = Registry("task", "returnn_tf.tasks", plugins="returnn_tf.tasks")

#: Function decorator: registers a task as ``task = "<name>"``. A name that ends in ":" matches all with this prefix.
register_task = TASKS.register


def find_task(name: str) -> Task:
    """Return the function of a task.

    :raises ConfigError: there is no task of this name
    """
    task = TASKS.find(name) or (TASKS.find(name.split(":")[0] + ":") if ":" in name else None)
    if task is None:
        raise ConfigError(TASKS.unknown(name))
    return task


def run_task(config: Config) -> int:
    """Run the task of the setting ``task`` ("train" by default), and return the exit code."""
    check_settings(config)
    return find_task(TaskSettings(config).task)(config)
