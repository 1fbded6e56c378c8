"""Where the log goes: handlers of `logging` for files, commands and the terminal, and the format of their lines."""

from __future__ import annotations

import datetime
import logging
import os
import subprocess
import sys
from typing import IO, Callable, Optional

from returnn_tf.logging.levels import DEFAULT_LEVEL, SCORE_LEVEL, WARNING_LEVEL, is_warning, level_of, standard_level
from returnn_tf.logging.terminal import paint, wants_color

LOG_FORMATS = ("default", "timed", "raw", "verbose")
_CLOSE_SECONDS = 10.0  # for a command to read the rest


class LineFormatter(logging.Formatter):
    """A line of the log.

    :param log_format: default and raw: the text only; timed: with time; verbose: with time, process and level
    """

    def __init__(self, log_format: str = "default") -> None:
        super().__init__()
        self._format = log_format

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        text = record.getMessage()
        return self._prefix(record) + ("Warning: " + text if is_warning(record.levelno) else text)

    def _prefix(self, record: logging.LogRecord) -> str:
        now = datetime.datetime.fromtimestamp(record.created)
        if self._format == "timed":
            return now.strftime("[%Y-%m-%d %H:%M:%S] ")
        if self._format == "verbose":
            time = now.strftime("[%Y-%m-%d %H:%M:%S.%f")
            return "%s pid %d, level %d] " % (time, os.getpid(), level_of(record.levelno))
        return ""


class TargetHandler(logging.Handler):
    """Lines to a file, or to the input of a command.

    :param target: file name (``$date`` becomes the time; folders are made) or "|command"
    :param level: of the log, see `returnn_tf.logging.levels`
    :raises OSError: the file can't be written
    """

    def __init__(self, target: str, level: int) -> None:
        super().__init__(standard_level(level))
        self._process: Optional[subprocess.Popen[str]] = None
        if target.startswith("|"):
            self._process = subprocess.Popen(target[1:], shell=True, stdin=subprocess.PIPE, text=True)
            assert self._process.stdin
            self._stream: IO[str] = self._process.stdin
        else:
            name = target.replace("$date", datetime.datetime.now().strftime("%Y-%m-%d-%H-%M-%S"))
            folder = os.path.dirname(name)
            if folder:
                os.makedirs(folder, exist_ok=True)
            self._stream = open(name, "a", encoding="utf8")  # closed by `close`

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        write_to(self._stream, self.format(record) + "\n")

    def close(self) -> None:
        """Close the file, or wait for the command that reads the lines."""
        super().close()
        try:
            self._stream.close()
        except OSError:
            pass  # the reading command is gone
        if self._process:
            self._process.wait(timeout=_CLOSE_SECONDS)


class TerminalHandler(logging.Handler):
    """Lines to the standard output.

    :param make_room: called before somebody writes there
    """

    def __init__(self, make_room: Callable[[], None]) -> None:
        super().__init__(standard_level(DEFAULT_LEVEL))
        self._make_room = make_room
        #: Of a process whose log another one writes: only warnings are shown, with this in front.
        self.label = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless it is for the files only (`terminal` of the record is False)."""
        level = level_of(record.levelno)
        elsewhere = not getattr(record, "terminal", True)
        if self.label and level != WARNING_LEVEL and not elsewhere:
            return
        self._make_room()
        if elsewhere:
            return
        line = self.format(record)
        if self.label:
            line = "%s: %s" % (self.label, line)
        color = {WARNING_LEVEL: "yellow", SCORE_LEVEL: "bold"}.get(level)
        write_to(sys.stdout, (paint(line, color, wants_color(sys.stdout)) if color else line) + "\n")


def write_to(stream: IO[str], text: str) -> None:
    """Write and flush; it is no error if the reader is gone: the program goes on."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        pass
