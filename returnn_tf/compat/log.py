"""``from returnn.log import log``: text files ``log.v1`` to ``log.v5`` for ``print(..., file=log.v3)``."""

from __future__ import annotations

import logging
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.compat_modules import register_compat
from returnn_tf.engine.support.log_targets import configure_log

register_compat(__name__, "returnn.log", "Log")

__all__ = ["log"]

_LOGGER = logging.getLogger("returnn_tf.config")


class _Stream:
    """Writes whole lines to the log."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._rest = ""

    def write(self, text: str) -> int:
        """Write text; a line is logged when it is complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            _LOGGER.log(self._level, "%s", line)
        return len(text)

    def flush(self) -> None:
        """Log an incomplete line."""
        if self._rest:
            self.write("\n")


class _Log:
    """The text files by importance, 1 to 5."""

    def __init__(self) -> None:
        self.v: Any = [
            _Stream(logging.WARNING if i < 2 else logging.INFO if i < 5 else logging.DEBUG) for i in range(6)
        ]
        self.error, self.v1, self.v2, self.v3, self.v4, self.v5 = self.v

    def init_by_config(self, config: Config) -> None:
        """Set up the log files and levels of ``log``, ``log_verbosity`` and ``log_format``, as a task does.

        :raises ConfigError: a file can't be written, or a level or format is wrong
        """
        configure_log(config)


log = _Log()
