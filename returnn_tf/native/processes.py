"""Runs compilers and extracts the most informative line of their output."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence

from returnn_tf.native.errors import NativeOpError


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
    :raises NativeOpError: it failed, with the most informative line of its output
    """
    try:
        done = subprocess.run(list(command), input=text, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NativeOpError("%s cannot be run: %s" % (command[0], exc)) from exc
    if done.returncode:
        raise NativeOpError("%s %s" % (" ".join(command[:3]), failure(done.returncode, done.stderr)))
    return done.stdout


def run_all(commands: Sequence[list[str]]) -> None:
    """Run commands in parallel.

    :raises NativeOpError: one failed, with the most informative line of its output
    """
    running = []
    for command in commands:
        try:
            running.append(
                subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
                )
            )
        except OSError as exc:
            raise NativeOpError("%s cannot be run: %s" % (command[0], exc.strerror)) from exc
    outputs = [process.communicate()[1] for process in running]
    for command, process, output in zip(commands, running, outputs):
        if process.returncode:
            raise NativeOpError("%s %s" % (os.path.basename(command[0]), failure(process.returncode, output)))


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
