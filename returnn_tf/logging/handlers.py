"""Handlers of `logging` for files, commands and the terminal, and the format of their lines."""

from __future__ import annotations

import datetime
import logging
import os
import subprocess
import sys
from typing import IO, Callable, Optional, TextIO

from returnn_tf.logging.levels import DEFAULT_LEVEL, SCORE_LEVEL, WARNING_LEVEL, is_warning, level_of, standard_level
from returnn_tf.logging.text import paint, printable, wants_color

PACKAGE = "returnn_tf"  # the name of the package's logger
LOG_FORMATS = ("default", "timed", "raw", "verbose")
_CLOSE_SECONDS = 10.0  # time for a command to read the rest


class LineFormatter(logging.Formatter):
    """Formats a line of the log.

    :param log_format: default and raw: the text only; timed: with time; verbose: with time, process and level
    """

    def __init__(self, log_format: str = "default") -> None:
        super().__init__()
        self._format = log_format

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        text = printable(record.getMessage(), keep="\n\t")
        return self._prefix(record) + ("Warning: " + text if is_warning(record.levelno) else text)

    def _prefix(self, record: logging.LogRecord) -> str:
        now = datetime.datetime.fromtimestamp(record.created)
        if self._format == "timed":
            return now.strftime("[%Y-%m-%d %H:%M:%S] ")
        if self._format == "verbose":
            time = now.strftime("[%Y-%m-%d %H:%M:%S.%f")
            return "%s pid %d, level %d] " % (time, os.getpid(), level_of(record.levelno))
        return ""


class StreamHandler(logging.Handler):
    """Writes lines to a stream. If that fails, e.g. on a full disk, the other handlers log it once; the run continues.

    :param target: name of the stream in that warning
    """

    def __init__(self, target: str, level: int) -> None:
        super().__init__(level)
        self._target = target
        #: Whether lines could not be written.
        self.failing = False

    def put(self, stream: IO[str], line: str) -> Optional[str]:
        """Write a line; return the warning the first time that this fails."""
        problem = write_to(stream, line + "\n")
        if problem is None or self.failing:
            return None
        self.failing = True
        text = "%s can't be written (%s): lines are missing there" % (self._target, problem)
        logging.getLogger(PACKAGE).warning(text)
        return text


class TargetHandler(StreamHandler):
    """Writes lines to a file, or to the standard input of a command.

    :param target: file name (``$date`` is replaced by the time; folders are created) or "|command"
    :param level: of the log, see `returnn_tf.logging.levels`
    :raises OSError: the file can't be written
    """

    def __init__(self, target: str, level: int) -> None:
        command = target[1:] if target.startswith("|") else None
        name = target.replace("$date", datetime.datetime.now().strftime("%Y-%m-%d-%H-%M-%S"))
        text = "log file %r" % name if command is None else "log command %r" % command
        super().__init__(text, standard_level(level))
        self._process: Optional[subprocess.Popen[str]] = None
        if command is not None:
            self._process = subprocess.Popen(
                command, shell=True, stdin=subprocess.PIPE, text=True, errors="backslashreplace"
            )
            assert self._process.stdin
            self._stream: IO[str] = self._process.stdin
        else:
            folder = os.path.dirname(name)
            if folder:
                os.makedirs(folder, exist_ok=True)
            self._stream = open(name, "a", encoding="utf8", errors="backslashreplace")  # closed by `close`

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self.put(self._stream, self.format(record))

    def close(self) -> None:
        """Close the file, or wait for the command to finish."""
        super().close()
        try:
            self._stream.close()
        except OSError:
            pass  # the reading command has exited
        if self._process:
            self._process.wait(timeout=_CLOSE_SECONDS)


class TerminalHandler(StreamHandler):
    """Writes lines to the standard output, or to the standard error.

    :param make_room: called before each line
    """

    def __init__(self, make_room: Callable[[], None]) -> None:
        super().__init__("the standard output", standard_level(DEFAULT_LEVEL))
        self._make_room = make_room
        #: Prefix in a process whose log another one writes; then only warnings are shown.
        self.label = ""
        #: Whether lines go to the standard error.
        self.on_stderr = False

    @property
    def stream(self) -> TextIO:
        """Return where lines go."""
        return sys.stderr if self.on_stderr else sys.stdout

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
        warning = self.put(self.stream, paint(line, color, wants_color(self.stream)) if color else line)
        if warning is not None:
            write_to(sys.stderr, "Warning: %s\n" % warning)


class SendingHandler(logging.Handler):
    """Passes lines to a function.

    :param receiver: function(level of `logging`, text)
    """

    def __init__(self, receiver: Callable[[int, str], None]) -> None:
        super().__init__()
        self._receiver = receiver

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a line on."""
        self._receiver(record.levelno, record.getMessage())


def write_to(stream: IO[str], text: str) -> Optional[str]:
    """Write and flush; return the reason if that fails, else None. A closed pipe is not a failure."""
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError as exc:
            stream.write(text.encode(exc.encoding, "backslashreplace").decode(exc.encoding))
        stream.flush()
    except BrokenPipeError:
        pass
    except OSError as exc:
        return exc.strerror or str(exc)
    return None
