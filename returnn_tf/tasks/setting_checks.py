"""Checks of all settings before a task begins, also of the options in dicts such as ``loss_spike`` and ``profile``."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings import check_settings
from returnn_tf.engine.checkpoints import cleanup, preload
from returnn_tf.engine.distributed.options import HorovodOptions
from returnn_tf.engine.learning_rate.control import given_rates
from returnn_tf.engine.learning_rate.schemes import scheme_from_config
from returnn_tf.engine.monitoring.profiling import profile_options
from returnn_tf.engine.pretrain import options as pretrain_options
from returnn_tf.engine.training.best_model import best_model_options
from returnn_tf.engine.training.callbacks import callbacks_of
from returnn_tf.engine.update import dynamic_learning_rate
from returnn_tf.engine.update import options as update_options
from returnn_tf.engine.update.update_guard import spike_options

ERROR_TOPIC = "settings"

#: Functions of a config that read the options in a dict, and raise `ConfigError` for a mistake in it.
_READERS: tuple[Callable[[Config], Any], ...] = (
    update_options.from_config,
    dynamic_learning_rate.decay_of,
    scheme_from_config,
    given_rates,
    spike_options,
    best_model_options,
    callbacks_of,
    pretrain_options.options_from_config,
    cleanup.options_from_config,
    preload.entries,
    profile_options,
    HorovodOptions.from_config,
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
        raise ConfigError("\n".join(faults))
