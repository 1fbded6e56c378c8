"""Runs compilers and extracts the most informative line of their output."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

from returnn_tf.native.errors import NativeOpError, ToolNotRunError

#: Seconds that a short command may take: much more than it needs, for a machine with other load.
PATIENCE = 300.0
#: Compilers at once, on machines with many CPUs: what is compiled for a network has not many more files.
_MOST = 16


def command_in(variable: str) -> list[str]:
    """Return the words of the command in an environment variable; empty if it is not set.

    :raises NativeOpError: it is not a valid command line
    """
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as exc:
        raise NativeOpError("$%s = %r is not a command: %s" % (variable, value, exc)) from exc


def output_of(command: Sequence[str], text: str = "") -> str:
    """Return the output of a short command.

    :param text: its input
    :raises ToolNotRunError: it cannot be started, or takes too long
    :raises NativeOpError: it failed, with the most informative line of its output
    """
    try:
        done = subprocess.run(
            list(command), input=text, capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as exc:
        shown = " ".join(command[:3])
        raise ToolNotRunError("%s did not end within %g seconds" % (shown, PATIENCE)) from exc
    except OSError as exc:
        raise ToolNotRunError("%s cannot be run: %s" % (command[0], exc)) from exc
    if done.returncode:
        raise NativeOpError("%s %s" % (" ".join(command[:3]), failure(done.returncode, done.stderr)))
    return done.stdout


class Slots:
    """Lets so many threads at once run a compiler; of those that wait, the one that takes longest is next.

    What remains for the end is then short, so that no CPU waits there for the compiler of another one.
    """

    def __init__(self, number: int):
        self._free = number
        self._waiting: list[float] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self, seconds: float) -> Iterator[None]:
        """Wait for a slot, and keep it for the duration of the context.

        :param seconds: about how long that is
        """
        with self._changed:
            self._waiting.append(seconds)
            self._changed.wait_for(lambda: self._free > 0 and seconds == max(self._waiting))
            self._waiting.remove(seconds)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


@functools.cache
def _slots() -> Slots:
    """Return what limits the compilers of this process: one for each CPU, of up to half a gigabyte of memory."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Slots(min(cpus, _MOST))


def run_all(commands: Sequence[list[str]], seconds: Sequence[float] = ()) -> None:
    """Run commands, as many at once, with those of other threads, as there are CPUs for.

    :param seconds: about how long each takes, see `Slots`; default: hardly any time
    :raises NativeOpError: one failed, with the most informative line of its output
    """
    with ThreadPoolExecutor(max(1, len(commands))) as threads:
        for problem in list(threads.map(_problem, commands, seconds or [0.0] * len(commands))):
            if problem is not None:
                raise problem


def _problem(command: list[str], seconds: float) -> Optional[NativeOpError]:
    """Run a command; return what went wrong."""
    try:
        with _slots().one(seconds):
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False
            )
    except OSError as exc:
        return ToolNotRunError("%s cannot be run: %s" % (command[0], exc.strerror))
    if done.returncode:
        return NativeOpError("%s %s" % (os.path.basename(command[0]), failure(done.returncode, done.stderr)))
    return None


def failure(code: int, output: str) -> str:
    """Describe the failure of a process, as "failed: (a line of its output)".

    :param code: its return code, not 0
    """
    if code > 0:
        return "failed: " + failing_line(output)
    return "was ended by %s (%s)" % (signal_name(-code), failing_line(output))


def signal_name(number: int) -> str:
    """Return the name of a signal, as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def failing_line(output: str) -> str:
    """Return the line of a compiler's output with the first error, else the first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "fatal")
    named = (line for line in lines if any(mark in line.lower() for mark in marks))
    return next(named, lines[0] if lines else "no message")
