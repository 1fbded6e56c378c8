"""`log`, the log of the program, by which all its modules write their lines."""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Callable, Optional

from returnn_tf.logging.handlers import (
    LOG_FORMATS,
    PACKAGE,
    LineFormatter,
    SendingHandler,
    TargetHandler,
    TerminalHandler,
)
from returnn_tf.logging.levels import DEFAULT_LEVEL, PROGRESS_LEVEL, STEP_LEVEL, WARNING_LEVEL, standard_level
from returnn_tf.logging.progress_bar import NotebookBar, ProgressBar, in_notebook
from returnn_tf.logging.text import hms, is_terminal


class Log:
    """Facade of the package's logger: its levels, its targets, and the progress bar."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(PACKAGE)
        self._files: list[TargetHandler] = []
        self._bar: Optional[ProgressBar] = None
        self._suffix = ""
        self._once: set[str] = set()
        self.started = time.monotonic()
        self._terminal = TerminalHandler(self._clear_bar)
        self._terminal_level = DEFAULT_LEVEL
        self._terminal.setFormatter(LineFormatter())

    @property
    def label(self) -> str:
        """Return the name of a process whose log another one writes, ``rank 1/4 on host``; "" otherwise."""
        return self._terminal.label

    @label.setter
    def label(self, label: str) -> None:
        self._terminal.label = label

    @property
    def lost_terminal(self) -> bool:
        """Return whether lines could not be written to the standard output."""
        return self._terminal.failing

    def become_helper(self, rank: int, label: str) -> None:
        """Show only warnings from now on: the rest is logged by another process of the same run.

        :param rank: log files get the suffix ``.rank<n>``
        :param label: for the warnings, ``rank 1/4 on host``
        """
        self.label, self._suffix = label, ".rank%d" % rank

    def attach(self) -> None:
        """Show lines on the standard output from now on, as programs, networks and trainings do.

        Until then, e.g. in programs that only read data, `logging` of the process decides where they go.
        """
        if not self._logger.handlers:
            self._install(self._terminal.formatter)

    def configure(
        self, targets: Sequence[str] = (), verbosity: Sequence[int] = (), log_format: str = "default"
    ) -> None:
        """Configure the targets besides the standard output, which from now on get also what is written once.

        :param targets: file names (``$date`` is replaced by the time; folders are created) or "|command"
        :param verbosity: the level of each target, then that of the standard output; the last one applies to the rest
        :param log_format: see `LineFormatter`
        :raises OSError: if a file can't be written
        :raises ValueError: for an unknown format or level
        """
        if log_format not in LOG_FORMATS:
            raise ValueError("log_format %r: expected one of %s" % (log_format, ", ".join(LOG_FORMATS)))
        levels = list(verbosity) or [DEFAULT_LEVEL]
        if not all(0 <= level <= STEP_LEVEL for level in levels):
            raise ValueError("log_verbosity: expected levels from 0 to %d, got %s" % (STEP_LEVEL, levels))
        targets = [target for target in targets if target not in ("stdout", "")]
        levels += levels[-1:] * (len(targets) + 1 - len(levels))
        self.close()
        for target, level in zip(targets, levels):
            name = target if target.startswith("|") else target + self._suffix
            self._files.append(TargetHandler(name, level))
        self._terminal_level = levels[len(targets)]
        self._install(LineFormatter(log_format))
        self._logger.propagate = False
        self._once.clear()

    def write(self, level: int, text: str, *, terminal: bool = True, once: bool = False) -> None:
        """Write a line (or several) to all targets that show this level.

        :param terminal: False: to the files only
        :param once: not if the text has been written since the log was configured, as by an earlier plan of a network
        """
        if not once or self._is_new(text):
            self._logger.log(standard_level(level), text, extra=None if terminal else {"terminal": False})

    def warn(self, text: str, *, once: bool = False) -> None:
        """Write a warning (level 2).

        :param once: as in `write`
        """
        if not once or self._is_new(text):
            self._logger.warning(text)

    def send_to(self, receiver: Callable[[int, str], None]) -> None:
        """Send the lines of this process to another one, which shows them by `pass_on`; levels 4 and 5 are left out.

        :param receiver: function(level of `logging`, text)
        """
        self._logger.handlers = [SendingHandler(receiver)]
        self._logger.propagate = False
        self._logger.setLevel(standard_level(DEFAULT_LEVEL))

    @contextlib.contextmanager
    def collected_warnings(self) -> Iterator[list[str]]:
        """Collect the warnings within the context, each text once; they are shown as well."""
        texts: list[str] = []

        def receive(level: int, text: str) -> None:
            if level == logging.WARNING and text not in texts:
                texts.append(text)

        handler = SendingHandler(receive)
        self._logger.addHandler(handler)
        try:
            yield texts
        finally:
            self._logger.removeHandler(handler)

    def pass_on(self, level: int, text: str) -> None:
        """Write a line that another process has sent, see `send_to`.

        :param level: of `logging`
        """
        self._logger.log(level, text)

    def shows(self, level: int) -> bool:
        """Return whether any target shows this level, i.e. whether the line needs to be composed."""
        return self._logger.isEnabledFor(standard_level(level))

    def progress(self, phase: str) -> ProgressBar:
        """Return a progress bar on the terminal, unless that shows the line of every step.

        Elsewhere, and if the output is not a terminal, a line per minute (level 3) reports the progress of the pass.
        """
        if in_notebook() and 0 < self._terminal_level < STEP_LEVEL:
            self._bar = NotebookBar(phase)
            return self._bar
        stream = self._terminal.stream
        visible = is_terminal(stream) and not self.label and 0 < self._terminal_level < STEP_LEVEL
        each_minute = None if self.shows(STEP_LEVEL) else partial(self.write, PROGRESS_LEVEL, terminal=not visible)
        self._bar = ProgressBar(phase, stream, visible, each_minute)
        return self._bar

    @contextlib.contextmanager
    def on_stderr(self, level: int) -> Iterator[None]:
        """Show lines up to a level on the standard error within the context, since the standard output has results."""
        self._terminal.on_stderr = True
        try:
            with self.at_level(level):
                yield
        finally:
            self._terminal.on_stderr = False

    @contextlib.contextmanager
    def at_level(self, level: Optional[int]) -> Iterator[None]:
        """Change the level of the standard output within the context; that of the files stays.

        :param level: None: as it is, but in notebooks scores and warnings only
        """
        before = self._terminal_level
        if level is None:
            level = min(before, WARNING_LEVEL) if in_notebook() else before
        self._terminal_level = level
        self._install(self._terminal.formatter)
        try:
            yield
        finally:
            self._terminal_level = before
            self._install(self._terminal.formatter)

    def close(self) -> None:
        """Close all files. Afterwards, lines go to the standard output only."""
        files, self._files = self._files, []
        self._install(self._terminal.formatter)
        for target in files:
            target.close()

    def elapsed_line(self) -> str:
        """Return ``elapsed: 0:28:58``: the time since the program began."""
        return "elapsed: %s" % hms(time.monotonic() - self.started)

    def _install(self, formatter: Optional[logging.Formatter]) -> None:
        """Install the targets as the handlers of the package's logger."""
        self._terminal.setLevel(standard_level(self._terminal_level))
        handlers: list[logging.Handler] = [*self._files, self._terminal]
        for handler in handlers:
            handler.setFormatter(formatter)
        self._logger.handlers = handlers
        self._logger.setLevel(min(handler.level for handler in handlers))

    def _is_new(self, text: str) -> bool:
        """Return whether a text that is written once has not been so yet; note it."""
        before = len(self._once)
        self._once.add(text)
        return len(self._once) > before

    def _clear_bar(self) -> None:
        if self._bar:
            self._bar.clear()


log = Log()
atexit.register(log.close)
