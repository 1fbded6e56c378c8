"""Checks of all settings before a task begins, also of the options in dicts such as ``loss_spike`` and ``profile``.

Also remarks on settings that are valid by themselves, but have no effect or contradict others.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any, Callable

from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, SettingError
from returnn_tf.config.options import declared_options
from returnn_tf.config.settings import check_settings, ignored_settings
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.logging import AS_ALWAYS, THREADS, LoggingSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.update import UpdateSettings
from returnn_tf.datasets.files import cache_options
from returnn_tf.engine.checkpoints import cleanup, preload
from returnn_tf.engine.distributed.options import options_of as distributed_options
from returnn_tf.engine.learning_rate.control import given_rates
from returnn_tf.engine.learning_rate.schedule import highest_factor, schedule_from_config
from returnn_tf.engine.learning_rate.schemes import scheme_from_config
from returnn_tf.engine.monitoring.profiling import profile_options
from returnn_tf.engine.monitoring.tracking import trackers_of
from returnn_tf.engine.pretrain import options as pretrain_options
from returnn_tf.engine.training.best_model import best_model_options
from returnn_tf.engine.training.callbacks import callbacks_of
from returnn_tf.engine.update import averages, dynamic_learning_rate
from returnn_tf.engine.update import options as update_options
from returnn_tf.engine.update.optimizers import optimizer_class
from returnn_tf.engine.update.update_guard import spike_options
from returnn_tf.graph.quantization import quantization_of, refusal_to_train
from returnn_tf.tensor import extern_data_options, parse_extern_data


def _quantization(config: Config) -> None:
    """Read ``quantize``.

    :raises ConfigError: a mistake in it; or the task trains
    """
    if quantization_of(config) is not None and TaskSettings(config).task == "train":
        raise refusal_to_train(NetworkSettings(config).describe_source("quantize"))


#: Functions of a config that read the options in a dict, and raise `ConfigError` for a mistake in it.
_READERS: tuple[Callable[[Config], Any], ...] = (
    update_options.from_config,
    averages.options_of,
    dynamic_learning_rate.decay_of,
    scheme_from_config,
    schedule_from_config,
    given_rates,
    spike_options,
    best_model_options,
    callbacks_of,
    pretrain_options.options_from_config,
    cleanup.options_from_config,
    preload.entries,
    profile_options,
    trackers_of,
    distributed_options,
    cache_options,
    _quantization,
)


def check_all_settings(config: Config) -> None:
    """Read every setting, then the options in those that are dicts.

    :raises ConfigError: lists all mistakes, each with its place
    """
    check_settings(config)
    check_options_in_settings(config)


def check_options_in_settings(config: Config) -> None:
    """Read the options in settings that are dicts.

    :raises ConfigError: lists all mistakes, each with its place
    """
    faults: list[str] = []
    for read in _READERS:
        try:
            read(config)
        except ConfigError as exc:
            faults.append(str(exc))
    if faults:
        raise SettingError("\n".join(faults))


def settings_without_effect(config: Config) -> list[str]:
    """Return ``name (reason)`` for each setting that has no effect in this config, all settings being valid."""
    found = ignored_settings(config)
    reason = _why_no_epsilon(config)
    if reason:
        found.append("optimizer_epsilon (%s)" % reason)
    for name, value in (LoggingSettings(config).tf_session_opts or {}).items():
        if name not in THREADS and (name not in AS_ALWAYS or value != AS_ALWAYS[name]):
            memory = "GPU memory is taken as it is needed; " if name == "gpu_options" else ""
            found.append("tf_session_opts: %s (%sonly the numbers of threads have an effect)" % (name, memory))
    return found


def _why_no_epsilon(config: Config) -> str:
    if not UpdateSettings(config).is_set("optimizer_epsilon"):
        return ""
    try:
        optimizer = update_options.optimizer_dict(config)
    except ConfigError:
        return ""  # which the check of the options tells
    if "epsilon" not in declared_options(optimizer_class(optimizer["class"], where="optimizer")):
        return "the optimizer %s has none" % optimizer["class"]
    return "the optimizer has an epsilon of its own" if "epsilon" in optimizer else ""


def contradictions(config: Config) -> list[str]:
    """Return a sentence for each setting that contradicts others or itself, all settings being valid."""
    found: list[str] = []
    for each in (_of_networks, _of_data, _of_rates):
        with contextlib.suppress(ConfigError):  # which the plan of the network will raise
            found += each(config)
    return found


def _of_networks(config: Config) -> Iterator[str]:
    settings = NetworkSettings(config)
    make = settings.get_network
    if isinstance(make, types.FunctionType) and settings.is_set("network") and "network" not in _names_in(make):
        where = settings.describe_source("network")
        yield "%s has no effect: get_network makes the networks. Remove one of them." % where


def _names_in(function: types.FunctionType) -> set[str]:
    """Return the names and strings in the code of a function and of those that it mentions."""
    names: set[str] = set()
    parts: list[Any] = [function]
    for part in parts:
        if isinstance(part, types.FunctionType):
            parts.append(part.__code__)
        elif isinstance(part, types.CodeType):
            own = {*part.co_names, *(value for value in part.co_consts if isinstance(value, str))} - names
            names |= own
            parts += [value for value in part.co_consts if isinstance(value, types.CodeType)]
            parts += [function.__globals__.get(name) for name in own]
    return names


def _of_data(config: Config) -> Iterator[str]:
    settings, data = NetworkSettings(config), DataSettings(config)
    older = {name: settings.value(name) for name in ("num_inputs", "num_outputs") if settings.is_set(name)}
    if older and settings.is_set("extern_data"):
        declared = parse_extern_data(extern_data_options({"extern_data": settings.extern_data}))
        for key, other in parse_extern_data(extern_data_options(older)).items():
            if key in declared and declared[key].dim not in (None, other.dim):
                yield "extern_data has dim %s for data key %r, but %s says %s. extern_data counts." % (
                    declared[key].dim, key, " or ".join(older), other.dim,
                )  # fmt: skip
    for name in data.eval_datasets or {}:
        if name in ("train", "dev", "eval") and data.value(name):
            yield "%s has a dataset %r, but so has the config itself, which is used. Give it another name." % (
                data.describe_source("eval_datasets"), name,
            )  # fmt: skip


def _of_rates(config: Config) -> Iterator[str]:
    settings = LearningRateSettings(config)
    if TaskSettings(config).task != "train":
        return
    others = ("learning_rates", "dynamic_learning_rate")
    if settings.learning_rate == 0 and not any(settings.is_set(name) for name in others):
        yield "%s is 0, so the training changes nothing." % settings.describe_source("learning_rate")
    schedule = schedule_from_config(config)
    if schedule is not None and not settings.is_set("learning_rate") and not settings.is_set("learning_rates"):
        highest = highest_factor(schedule)
        if highest > 0.1:
            where = settings.describe_source("learning_rate_schedule")
            yield "%s: learning_rate is not set, so the highest rate is %.3g. Set learning_rate." % (where, highest)
    decay = settings.learning_rate_decay
    if not callable(decay) and decay > 1 and settings.learning_rate_control != "constant":
        where = settings.describe_source("learning_rate_decay")
        yield "%s is %g, so a learning rate that should decay grows. Take a factor below 1." % (where, decay)
