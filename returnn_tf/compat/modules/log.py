"""``from returnn.log import log``: text files ``log.v1`` to ``log.v5`` for ``print(..., file=log.v3)``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config import Config
from returnn_tf.engine.support.log_targets import configure_log
from returnn_tf.logging.log import log as main_log

register_compat(__name__, "returnn.log", "Log")

__all__ = ["log"]


class _Stream:
    """Writes whole lines to the log.

    :param put: writes one
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._rest = ""

    def write(self, text: str) -> int:
        """Write text; a line is logged when it is complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._put(line)
        return len(text)

    def flush(self) -> None:
        """Log an incomplete line."""
        if self._rest:
            self.write("\n")


class _Log:
    """The text files by importance, 1 to 5."""

    def __init__(self) -> None:
        puts = [main_log.warn] * 2 + [partial(main_log.write, 3)] * 3 + [partial(main_log.write, 4)]
        self.v: Any = [_Stream(put) for put in puts]
        self.error, self.v1, self.v2, self.v3, self.v4, self.v5 = self.v

    def init_by_config(self, config: Config) -> None:
        """Set up the log files and levels of ``log``, ``log_verbosity`` and ``log_format``, as a task does.

        :raises ConfigError: a file can't be written, or a level or format is wrong
        """
        configure_log(config)

    def initialize(
        self, logs: Sequence[str] = (), verbosity: Sequence[int] = (), formatter: Sequence[str] = ()
    ) -> None:
        """Set up the log without a config.

        :param logs: its files; the standard output is always one of its targets
        :param verbosity: levels from 0 to 5 of the targets
        :param formatter: names as in ``log_format``; the first one counts
        """
        config = Config()
        given = {"log": logs, "log_verbosity": verbosity, "log_format": list(formatter)[:1]}
        config.update({key: list(value) for key, value in given.items() if value})
        configure_log(config)

    def print_warning(self, text: str, prefix_text: str = "") -> None:
        """Log a warning, which the log marks as one."""
        print("%s %s" % (prefix_text, text) if prefix_text else text, file=self.v1)


log = _Log()
