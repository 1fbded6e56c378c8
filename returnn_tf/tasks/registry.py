"""Registry of tasks: functions(config) -> exit code in modules of this folder, which are discovered."""

from __future__ import annotations

from typing import Callable

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.registry import Registry

Task = Callable[[Config], int]

TASKS: Registry[Task] = Registry("task", "returnn_tf.tasks", plugins="returnn_tf.tasks")

#: Function decorator: registers a task as ``task = "<name>"``. A name that ends in ":" matches all with this prefix.
register_task = TASKS.register

#: Tasks of older configs, and what there is instead.
_MISSING = {
    "analyze": "returnn-tf my.config ++task eval computes the scores, ++task compute_priors the priors.",
    "analyze_data": "returnn-tf my.config ++task compute_priors computes priors from the outputs of a network.",
    "hyper_param_tuning": "start one training for each value: ++learning_rate 0.01 ++model net-0.01/network.",
    "search_server": "write a task of your own that loads the network once, by returnn_tf.register_task.",
    "classify": "++task forward writes the outputs of a layer.",
    "daemon": "write a task of your own that loads the network once, by returnn_tf.register_task.",
    "dump": "returnn-tf data dump my.config prints the data.",
    "inspect": "returnn-tf data info my.config counts sequences, lengths and labels.",
    "server": "write a task of your own that loads the network once, by returnn_tf.register_task.",
    "theano_graph": "returnn-tf export writes graphs for other programs.",
    "debug_shell": "a failed step is saved, and ++task replay repeats it; or write a task config:my_function.",
}


def find_task(name: str) -> Task:
    """Return the function of a task.

    :raises ConfigError: there is no task of this name
    """
    if name in _MISSING:
        raise CommandError("The task %r does not exist here: %s" % (name, _MISSING[name]))
    task = TASKS.find(name) or (TASKS.find(name.split(":")[0] + ":") if ":" in name else None)
    if task is None:
        raise CommandError(TASKS.unknown(name))
    return task
