"""The tasks by name. A task is a function(config) -> exit code in a module of this folder, which is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Callable, Dict

from returnn_tf.config import Config, ConfigError, did_you_mean
from returnn_tf.config.settings import TaskSettings, check_settings

Task = Callable[[Config], int]

_PACKAGE = "returnn_tf.tasks"
_TASKS: Dict[str, Task] = {}


def register_task(*names: str) -> Callable[[Task], Task]:
    """Function decorator: makes a task known as ``task = "<name>"``.

    :param names: the name and its aliases. A name that ends in ":" stands for all that begin with it
    """

    def register(function: Task) -> Task:
        for name in names:
            assert name not in _TASKS or _TASKS[name].__qualname__ == function.__qualname__, "task %r exists" % name
            _TASKS[name] = function
        return function

    return register


def all_tasks() -> Dict[str, Task]:
    """All tasks by name; imports the modules of this folder."""
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module("%s.%s" % (_PACKAGE, module.name))
    return dict(_TASKS)


def find_task(name: str) -> Task:
    """The function of a task.

    :raises ConfigError: if there is none of this name
    """
    tasks = all_tasks()
    prefix = name.split(":")[0] + ":"
    task = tasks.get(name) or (tasks.get(prefix) if ":" in name else None)
    if task is None:
        raise ConfigError("unknown task %r. %s" % (name, did_you_mean(name, tasks)))
    return task


def run_task(config: Config) -> int:
    """Does what the setting ``task`` says ("train" by default) and returns the exit code."""
    check_settings(config)
    return find_task(TaskSettings(config).task)(config)
