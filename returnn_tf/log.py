"""What a person sees: log levels, log files, the lines of steps and epochs, and a progress bar on a terminal.

Levels: 1 scores of the epochs, 2 warnings, 3 what happens, 4 details, 5 every step. Each target shows what is at or
below its own level.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from typing import IO, Any, Callable, List, Mapping, Optional, Sequence, Set, TextIO, Tuple, Union

WARNING_LEVEL = 2
DEFAULT_LEVEL = 3
PROGRESS_LEVEL = 3
STEP_LEVEL = 5

Number = Union[int, float]
_COLORS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "bold": 1, "dim": 2}


# -- terminals


def is_terminal(stream: Any) -> bool:
    """Whether a person looks at the stream."""
    return bool(getattr(stream, "isatty", lambda: False)())


def wants_color(stream: Any) -> bool:
    """Colour only on a terminal, and not with NO_COLOR set or a dumb terminal."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str, enabled: bool = True) -> str:
    """The text in a colour, if enabled.

    :param color: red, green, yellow, blue, magenta, cyan, bold or dim
    """
    return "\x1b[%dm%s\x1b[0m" % (_COLORS[color], text) if enabled else text


# -- the parts of the lines


def hms(seconds: float) -> str:
    """``0:28:58``: hours, minutes, seconds."""
    whole = max(0, int(seconds)) if math.isfinite(seconds) else 0
    return "%d:%02d:%02d" % (whole // 3600, whole // 60 % 60, whole % 60)


def bytes_text(count: float) -> str:
    """``1.5GB``: a number of bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return "%.1f%s" % (count, unit) if unit != "B" else "%d%s" % (count, unit)
        count /= 1024
    return "%.1fGB" % count


def process_memory() -> int:
    """Bytes of memory which this process has in use now; 0 where the system doesn't tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def phase_text(kind: str, epoch: int, dataset: Optional[str] = None, pretrain: bool = False) -> str:
    """The words at the start of a line: ``train epoch 3``, ``pretrain epoch 3``, ``'dev' eval epoch 3``.

    :param kind: train, eval, search, forward or analyze
    :param dataset: its name; not for training
    """
    words = [repr(dataset)] if dataset else []
    return " ".join(words + [("pre" if pretrain else "") + kind, "epoch", str(epoch)])


def step_line(
    phase: str,
    step: int,
    values: Mapping[str, Any],
    *,
    seconds_per_step: float,
    elapsed: float,
    complete: Optional[float] = None,
) -> str:
    """The line of one step (level 5).

    :param phase: see :func:`phase_text`
    :param step: from 0
    :param values: cost:<layer>, error:<layer>, loss, max_size:<key>, num_seqs, mem_usage:<device>, ...
    :param seconds_per_step: of this step
    :param elapsed: seconds since the pass began
    :param complete: share of the pass that is done, 0 - 1, if known
    """
    fields = [phase, "step %d" % step]
    fields += ["%s %s" % (name, _value_text(value)) for name, value in sorted(values.items())]
    fields += ["%.3f sec/step" % seconds_per_step, "elapsed %s" % hms(elapsed)]
    if complete:
        fields.append("exp. remaining %s" % hms(elapsed / complete - elapsed))
    if complete is not None:
        fields.append("complete %.2f%%" % (100 * complete))
    return ", ".join(fields)


def _value_text(value: Any) -> str:
    if isinstance(value, float) or hasattr(value, "dtype"):
        return "%.6g" % float(value)
    return str(value)


def progress_line(
    phase: str, steps: int, elapsed: float, *, complete: Optional[float] = None, loss: Optional[float] = None
) -> str:
    """The line, now and then, that says how far a pass is (level 3).

    ``train epoch 3, 120 steps, loss 1.234, elapsed 0:01:00, exp. remaining 0:03:10, complete 24.0%``

    :param steps: done so far
    :param complete: share of the pass that is done, 0 - 1, if known
    :param loss: of the last step
    """
    fields = [phase, "%d steps" % steps]
    if loss is not None:
        fields.append("loss %.4g" % loss)
    fields.append("elapsed %s" % hms(elapsed))
    if complete:
        fields.append("exp. remaining %s" % hms(elapsed / complete - elapsed))
        fields.append("complete %.1f%%" % (100 * complete))
    return ", ".join(fields)


def pass_line(phase: str, steps: int, elapsed: float, compute_seconds: float) -> str:
    """The line at the end of a pass over a dataset (level 3).

    ``train epoch 1, finished after 2941 steps, 0:28:58 elapsed (99.3% computing time)``
    """
    share = 100 * compute_seconds / elapsed if elapsed > 0 else 0.0
    return "%s, finished after %d steps, %s elapsed (%.1f%% computing time)" % (phase, steps, hms(elapsed), share)


def time_shares_line(phase: str, elapsed: float, compute_seconds: float, wait_seconds: float) -> str:
    """Where the time of a pass went: ``train epoch 1, time: 99.3% compute, 0.4% waiting for data, 0.3% rest``."""
    whole = elapsed if elapsed > 0 else 1.0
    rest = max(0.0, elapsed - compute_seconds - wait_seconds)
    compute, wait, other = (100 * part / whole for part in (compute_seconds, wait_seconds, rest))
    return "%s, time: %.1f%% compute, %.1f%% waiting for data, %.1f%% rest" % (phase, compute, wait, other)


def score_text(scores: Union[None, Number, Mapping[str, Number]]) -> str:
    """One loss: the bare number. Several: name and number of each, sorted. None: ``None``."""
    if isinstance(scores, Mapping):
        if len(scores) > 1:
            return " ".join("%s %s" % (name, score_text(value)) for name, value in sorted(scores.items()))
        scores = next(iter(scores.values()), None)
    return "None" if scores is None else str(float(scores))


def epoch_line(epoch: int, score: Any, error: Any, elapsed: float) -> str:
    """The line of a training epoch (level 1): ``epoch 1 score: 0.45 error: 0.21 elapsed: 0:00:07``."""
    return "epoch %d score: %s error: %s elapsed: %s" % (epoch, score_text(score), score_text(error), hms(elapsed))


def eval_line(results: Mapping[str, Tuple[Any, Any]]) -> str:
    """The line of all evaluation datasets (level 1): ``dev: score 0.26 error 0.12 eval: score 0.30 error 0.16``.

    :param results: dataset -> (score, error), as for :func:`score_text`
    """
    return " ".join(
        "%s: score %s error %s" % (name, score_text(score), score_text(error))
        for name, (score, error) in results.items()
    )


def start_line(phase: str, learning_rate: Optional[float] = None) -> str:
    """The line at the start of an epoch (level 4 and below): ``start train epoch 1, learning rate 0.001``."""
    rate = "" if learning_rate is None else ", learning rate %s" % learning_rate
    return "start %s%s" % (phase, rate)


# -- targets


class _Target:
    """One place where lines go."""

    def __init__(
        self, name: str, stream: IO[str], level: int, process: Optional["subprocess.Popen[str]"] = None
    ) -> None:
        self.name = name
        self.stream = stream
        self.level = level
        self.process = process

    def close(self) -> None:
        """Closes a file, and waits for a command that reads the lines."""
        if self.stream is sys.stdout:
            return
        try:
            self.stream.close()
        except OSError:
            pass  # the reading command is gone
        if self.process:
            self.process.wait(timeout=10)


def _prefix(log_format: str, level: int) -> str:
    now = datetime.datetime.now()
    if log_format == "timed":
        return now.strftime("[%Y-%m-%d %H:%M:%S] ")
    if log_format == "verbose":
        return "%s pid %d, level %d] " % (now.strftime("[%Y-%m-%d %H:%M:%S.%f"), os.getpid(), level)
    return ""


_STDOUT = "the standard output"
LOG_FORMATS = ("default", "timed", "raw", "verbose")


class Log:
    """Writes lines to the terminal, files and commands. The module's ``log`` is the one that everybody uses."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._format = "default"
        self._files: List[_Target] = []
        self._terminal_level = DEFAULT_LEVEL
        self._bar: Optional[ProgressBar] = None
        #: of a process which works for another one that writes files: ``rank 1/4 on host``; "" otherwise
        self.label = ""
        self._suffix = ""
        self._failing: Set[str] = set()  # what could not be written to, by name
        self.started = time.monotonic()

    @property
    def lost_terminal(self) -> bool:
        """Whether lines could not be written to the standard output."""
        return _STDOUT in self._failing

    def become_helper(self, rank: int, label: str) -> None:
        """This process works together with another one, whose log tells it all: here only warnings are shown.

        :param rank: log files get the suffix ``.rank<n>``
        :param label: for the warnings, ``rank 1/4 on host``
        """
        self.label, self._suffix = label, ".rank%d" % rank

    def configure(
        self, targets: Sequence[str] = (), verbosity: Sequence[int] = (), log_format: str = "default"
    ) -> None:
        """Sets where lines go, besides the standard output.

        :param targets: file names (``$date`` becomes the time; folders are made) or "|command"
        :param verbosity: the level of each target, then that of the standard output; the last one counts for the rest
        :param log_format: default and raw: the lines only; timed: with time; verbose: with time, process and level
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
        _forward_library_logging(self)
        with self._lock:
            self._format = log_format
            for target, level in zip(targets, levels):
                self._files.append(_open_target(target if target.startswith("|") else target + self._suffix, level))
            self._terminal_level = levels[len(targets)]

    def write(self, level: int, text: str, *, terminal: bool = True) -> None:
        """Writes a line (or several) to all targets that show this level.

        :param terminal: False: to the files only
        """
        with self._lock:
            line = _prefix(self._format, level) + text + "\n"
            for target in self._files:
                if level <= target.level:
                    self._put(target.name, target.stream, line)
            shown_here = terminal and level <= self._terminal_level
            if self.label:
                shown_here = shown_here and level == WARNING_LEVEL
                line = "%s: %s" % (self.label, line)
            if self._bar and (shown_here or not terminal):
                self._bar.clear()  # somebody is about to write there
            if shown_here:
                color = "yellow" if level == 2 else "bold" if level == 1 else None
                shown = paint(line[:-1], color, wants_color(sys.stdout)) + "\n" if color else line
                self._put(_STDOUT, sys.stdout, shown)

    def _put(self, name: str, stream: IO[str], line: str) -> None:
        """Write a line. If that fails, e.g. on a full disk, the others hear of it once, and the work goes on."""
        problem = _write(stream, line)
        if problem is None or name in self._failing:
            return
        self._failing.add(name)
        text = "%s can't be written (%s): lines are missing there" % (name, problem)
        self.warn(text)
        if name == _STDOUT:
            _write(sys.stderr, "Warning: %s\n" % text)

    def warn(self, text: str) -> None:
        """A warning (level 2)."""
        self.write(WARNING_LEVEL, "Warning: " + text)

    def shows(self, level: int) -> bool:
        """Whether any target shows this level: otherwise the line needn't be made."""
        return level <= max([self._terminal_level] + [target.level for target in self._files])

    def progress(self, phase: str) -> ProgressBar:
        """Return a progress bar on the terminal, unless that shows the line of every step.

        Elsewhere, and where the output is no terminal, a line each minute (level 3) says how far the pass is.
        """
        with self._lock:
            visible = is_terminal(sys.stdout) and not self.label and 0 < self._terminal_level < STEP_LEVEL
            each_minute = None if self.shows(STEP_LEVEL) else partial(self.write, PROGRESS_LEVEL, terminal=not visible)
            self._bar = ProgressBar(phase, sys.stdout, visible, each_minute)
            return self._bar

    def close(self) -> None:
        """Closes all files. Lines go to the standard output only, afterwards."""
        with self._lock:
            for target in self._files:
                target.close()
            self._files = []

    def elapsed_line(self) -> str:
        """``elapsed: 0:28:58``: time since the program began."""
        return "elapsed: %s" % hms(time.monotonic() - self.started)


class _Forward(logging.Handler):
    """Hands what the package says by ``logging`` to the log: warnings as level 2, infos as 3, the rest as 4."""

    def __init__(self, target: Log):
        super().__init__()
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        if record.levelno >= logging.WARNING:
            self.target.warn(record.getMessage())
        else:
            self.target.write(3 if record.levelno >= logging.INFO else 4, record.getMessage())


def _forward_library_logging(target: Log) -> None:
    library = logging.getLogger("returnn_tf")
    library.setLevel(logging.DEBUG)
    library.propagate = False
    library.handlers = [_Forward(target)]


def _open_target(target: str, level: int) -> _Target:
    if target.startswith("|"):
        process = subprocess.Popen(target[1:], shell=True, stdin=subprocess.PIPE, text=True)
        assert process.stdin
        return _Target("log command %r" % target[1:], process.stdin, level, process)
    name = target.replace("$date", datetime.datetime.now().strftime("%Y-%m-%d-%H-%M-%S"))
    folder = os.path.dirname(name)
    if folder:
        os.makedirs(folder, exist_ok=True)
    return _Target("log file %r" % name, open(name, "a", encoding="utf8"), level)


def _write(stream: IO[str], text: str) -> Optional[str]:
    """Write to a stream; return why that is impossible, or None. That a reader is gone is no reason."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        pass
    except OSError as exc:
        return exc.strerror or str(exc)
    return None


class ProgressBar:
    """One line on a terminal that shows how far a pass over a dataset is.

    ``train epoch 3  42% ########------------  step 120  loss 1.23  12.3k frames/s  ETA 0:01:23``
    """

    INTERVAL = 0.1
    SECONDS_BETWEEN_LINES = 60.0

    def __init__(
        self, phase: str, stream: TextIO, visible: bool, each_minute: Optional[Callable[[str], None]] = None
    ) -> None:
        """
        :param phase: see :func:`phase_text`
        :param visible: whether it is drawn
        :param each_minute: gets a line for the log, for those who don't see the bar
        """
        self.phase = phase
        self.stream = stream
        self.visible = visible
        self._each_minute = each_minute
        self._started = self._told = time.monotonic()
        self._drawn = -math.inf
        self._shown = False

    def update(
        self,
        step: int,
        complete: Optional[float] = None,
        loss: Optional[float] = None,
        frames: Optional[int] = None,
    ) -> None:
        """Draws it anew, at most ten times a second.

        :param step: steps done
        :param complete: share that is done, 0 - 1
        :param loss: the current one
        :param frames: all frames so far
        """
        now = time.monotonic()
        if self._each_minute is not None and now - self._told >= self.SECONDS_BETWEEN_LINES:
            self._told = now
            self._each_minute(progress_line(self.phase, step, now - self._started, complete=complete, loss=loss))
        if not self.visible or now - self._drawn < self.INTERVAL:
            return
        self._drawn = now
        line = self.text(step, complete, loss, frames, now - self._started)
        columns = shutil.get_terminal_size().columns
        self._shown = True
        _write(self.stream, "\r\x1b[K" + line[: columns - 1])

    def text(
        self, step: int, complete: Optional[float], loss: Optional[float], frames: Optional[int], elapsed: float
    ) -> str:
        """The line, without anything for the terminal."""
        parts = [self.phase]
        if complete is not None:
            done = int(20 * min(1.0, complete))
            parts.append("%3d%% %s%s" % (100 * complete, "#" * done, "-" * (20 - done)))
        parts.append("step %d" % step)
        if loss is not None:
            parts.append("loss %.4g" % loss)
        if frames is not None and elapsed > 0:
            parts.append("%s frames/s" % _short(frames / elapsed))
        memory = process_memory()
        if memory:
            parts.append("mem %s" % bytes_text(memory))
        parts.append("ETA %s" % hms(elapsed / complete - elapsed) if complete else "elapsed %s" % hms(elapsed))
        return "  ".join(parts)

    def clear(self) -> None:
        """Takes it off the terminal, so that a line can stand there."""
        if self._shown:
            _write(self.stream, "\r\x1b[K")
            self._shown = False

    def close(self) -> None:
        """The pass is over."""
        self.clear()
        self.visible = False


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return "%.1f%s" % (number / size, unit)
    return "%.0f" % number


log = Log()
atexit.register(log.close)
