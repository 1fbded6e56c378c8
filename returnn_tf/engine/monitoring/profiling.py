"""Traces of some training steps for TensorBoard: ``--profile`` on the command line, or the setting ``profile``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import at_least, from_options, option
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf


@dataclass(frozen=True)
class ProfileOptions:
    """Range of steps to trace, counted from the start of the run."""

    first_step: int = option(10, help="the first ones trace the graph and warm up", check=at_least(0))
    steps: int = option(10, help="number of steps in a trace", check=at_least(1))
    every: int = option(0, help="trace again after this many steps; 0: only once", check=at_least(0))


class Profiler:
    """Traces steps according to `ProfileOptions`; without options or without a folder it does nothing.

    :param folder: of the event files
    """

    def __init__(self, options: Optional[ProfileOptions], folder: Optional[str]) -> None:
        self._options = options
        self._folder = folder
        self._done = 0  # steps of this run
        self._running = False

    @classmethod
    def from_config(cls, config: Config, folder: Optional[str]) -> Profiler:
        """Return the profiler of a config.

        :param config: ``profile`` (True or a dict of `ProfileOptions`), ``store_metadata_mod_step``
        :param folder: of the event files
        :raises ConfigError: wrong options, or no folder to write to
        """
        options = profile_options(config)
        if options is not None and folder is None:
            raise SettingError("Traces for TensorBoard need a folder: set tf_log_dir, or model.")
        return cls(options, folder)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Run one training step within this context; it is traced if it is in the range."""
        if self._options is None:
            yield
            return
        position = self._done - self._options.first_step
        if self._options.every and position >= 0:
            position %= self._options.every
        if position == 0 and not self._running:
            tf.profiler.experimental.start(self._folder)
            self._running = True
        if self._running:
            with tf.profiler.experimental.Trace("train", step_num=self._done, _r=1):
                yield
        else:
            yield
        self._done += 1
        if self._running and position + 1 >= self._options.steps:
            self.close()

    def close(self) -> None:
        """Complete a trace that is running."""
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            log.write(1, "Steps up to %i of this run are traced. To view them: tensorboard --logdir %s (with "
                      "tensorboard-plugin-profile installed), tab Profile." % (self._done, self._folder))  # fmt: skip


def profile_options(config: Config) -> Optional[ProfileOptions]:
    """Return the options for traces, or None for no traces.

    :raises ConfigError: unknown or wrong option
    """
    given = LoggingSettings(config).profile
    where = LoggingSettings(config).describe_source("profile")
    every = LoggingSettings(config).store_metadata_mod_step or 0
    if given is None or given is False:
        return ProfileOptions(first_step=every, steps=1, every=every) if every > 0 else None
    if given is True or given == 1:
        return ProfileOptions()
    if not isinstance(given, dict):
        raise SettingError(
            "%s: expected True or a dict such as {'first_step': 10, 'steps': 10}, not %r." % (where, given)
        )
    options = from_options(ProfileOptions, given, where=where)
    if 0 < options.every <= options.steps:
        raise SettingError("%s: every must be more than steps (%i)." % (where, options.steps))
    return options
