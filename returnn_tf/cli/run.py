"""``returnn-tf my.config ++key value`` and ``returnn-tf train``: reads configs, sets up the log, runs the task."""

from __future__ import annotations

import datetime
import os
import platform
import signal

from returnn_tf._version import __version__
from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, ConfigError, DataError
from returnn_tf.config.registry import missing_rooms
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.files import set_up_cache
from returnn_tf.engine.distributed import world
from returnn_tf.engine.support.log_targets import configure_log
from returnn_tf.engine.support.signals import STOP_SIGNALS, StopRequest
from returnn_tf.logging.log import log
from returnn_tf.logging.text import date_text
from returnn_tf.tasks.registry import TASKS, find_task
from returnn_tf.tasks.setting_checks import check_all_settings, contradictions, settings_without_effect

#: Signals of a cluster, which may arrive while the config is read and modules are imported. Ctrl-C raises as usual.
_EARLY = tuple(number for number in STOP_SIGNALS if number != signal.SIGINT)


@register_command(
    "run",
    "CONFIG ... [--sanity] [++key value ...]",
    "run the task of the config: train, eval, forward, ...",
    details="  --sanity   instead, find out in a minute why a network does not learn: check labels, features and\n"
    "             lengths of the data, gradients, padding, and whether one batch can be learned. Writes no model",
    group="train",
)
def run(args: list[str]) -> int:
    """Run the task of the config.

    :param args: config files, then options and ``++key value``
    :return: the exit code of the task
    :raises ConfigError: a mistake in the arguments or the config
    """
    word = args[0] if args else ""
    if word.isidentifier() and not os.path.exists(word):
        fault = "there is no command and no config file %r." % word
        if word in TASKS.names():
            raise CommandError("%s To run this task: returnn-tf my.config ++task %s" % (fault, word))
        if missing_rooms():
            raise CommandError(" ".join([fault, *missing_rooms()]))
    with StopRequest(signals=_EARLY, idle="exiting before the task has begun") as stop:
        return _run(args, stop)


@register_command(
    "train",
    "CONFIG ... [++key value ...]",
    "train the model of a config, or resume its training",
    details="The same as returnn-tf CONFIG ++task train. Why a network does not learn: returnn-tf run CONFIG --sanity.",
    group="train",
)
def train(args: list[str]) -> int:
    """Run the task "train", whatever task the config names.

    :param args: as of `run`
    :return: the exit code of the task
    :raises ConfigError: there is no config, or another task is asked for
    """
    parsed = parse_arguments(args)
    if not parsed.files:
        raise CommandError("train: which config? returnn-tf train my.config")
    tasks = [value for key, value in parsed.overrides if key == "task" and value != "train"]
    if tasks:
        instead = "--sanity" if tasks[0] == "sanity" else "++task " + tasks[0]
        raise CommandError("train: for another task: returnn-tf run %s %s" % (" ".join(parsed.files), instead))
    return run([*args, "++task", "train"])


def _run(args: list[str], stop: StopRequest) -> int:
    """Read the config, join the other processes and run the task, which handles signals itself."""
    config = read_config(args)
    stop.config = config
    members = world.start(config)
    try:
        code = _run_task(config, members, stop)
    except (Exception, SystemExit) as exc:
        if not isinstance(exc, SystemExit) or exc.code:  # else code of the config ends the run as done
            what = str(exc) if isinstance(exc, (ConfigError, DataError)) else "%s: %s" % (type(exc).__name__, exc)
            members.failed(what)
        raise
    members.leave()
    log.write(3, log.elapsed_line())
    return code


def _run_task(config: Config, members: world.World, stop: StopRequest) -> int:
    if not members.is_chief:
        log.become_helper(members.rank, members.name)
    configure_log(config)
    name = TaskSettings(config).task
    task = find_task(name)
    now = date_text(datetime.datetime.now())
    log.write(3, "returnn_tf %s, Python %s, task %s, %s" % (__version__, platform.python_version(), name, now))
    log.write(3, "config: %s" % (", ".join(config.files) or "none"))
    check_all_settings(config)
    set_up_cache(config)
    for text in config.stale_values():
        log.warn(text)
    ignored = settings_without_effect(config)
    if ignored:
        log.write(3, "Settings without effect: %s" % ", ".join(ignored))
    if members.is_chief:
        for text in contradictions(config):
            log.warn(text)
    callback = TaskSettings(config).startup_callback
    if callback is not None:
        callback(config=config)
    stop.close()
    return task(config)


def read_config(args: list[str]) -> Config:
    """Read the config of a command line, with ``behavior_version`` checked."""
    parsed = parse_arguments(args)
    config = Config.from_files(parsed.files, parsed.overrides)
    NetworkSettings(config).behavior_version  # noqa: B018  raises if it is wrong
    return config
