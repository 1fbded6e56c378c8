"""Runs compilers, and finds the line of their output that says most."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from typing import List, Sequence

from returnn_tf.native.errors import NativeOpError


def command_in(variable: str) -> List[str]:
    """The words of a command in an environment variable; none if it is not set.

    :raises NativeOpError: it is no command
    """
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as exc:
        raise NativeOpError("$%s = %r is no command: %s" % (variable, value, exc)) from exc


def output_of(command: Sequence[str], text: str = "") -> str:
    """Output of a command that ends soon.

    :param text: what it reads
    :raises NativeOpError: it failed, with the line of its output that says most
    """
    try:
        done = subprocess.run(list(command), input=text, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NativeOpError("%s cannot be run: %s" % (command[0], exc)) from exc
    if done.returncode:
        raise NativeOpError("%s %s" % (" ".join(command[:3]), failure(done.returncode, done.stderr)))
    return done.stdout


def run_all(commands: Sequence[List[str]]) -> None:
    """Run commands beside each other.

    :raises NativeOpError: one failed, with the line that says most
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
    """What happened to a process, as "failed: (a line of its output)".

    :param code: its return code, which is not 0
    """
    if code > 0:
        return "failed: " + failing_line(output)
    return "was ended by %s (%s)" % (signal_name(-code), failing_line(output))


def signal_name(number: int) -> str:
    """As "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def failing_line(output: str) -> str:
    """The line of a compiler's output that names the first error, else its first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "fatal")
    named = (line for line in lines if any(mark in line.lower() for mark in marks))
    return next(named, lines[0] if lines else "no message")
