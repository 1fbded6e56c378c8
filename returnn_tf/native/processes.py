"""Runs compilers, and finds the line of their output that says most."""

from __future__ import annotations

import os
import subprocess
from typing import List, Sequence

from returnn_tf.native.errors import NativeOpError


def output_of(command: Sequence[str], text: str = "") -> str:
    """Output of a command that ends soon.

    :param text: what it reads
    :raises NativeOpError: it failed, with the line of its output that says most
    """
    try:
        done = subprocess.run(list(command), input=text, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NativeOpError("%s cannot be run: %s" % (command[0], exc)) from exc
    if done.returncode:
        raise NativeOpError("%s failed: %s" % (" ".join(command[:3]), failing_line(done.stderr)))
    return done.stdout


def run_all(commands: Sequence[List[str]]) -> None:
    """Run commands beside each other.

    :raises NativeOpError: one failed, with the line that says most
    """
    running = []
    for command in commands:
        try:
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        except OSError as exc:
            raise NativeOpError("%s cannot be run: %s" % (command[0], exc.strerror)) from exc
    outputs = [process.communicate()[1] for process in running]
    for command, process, output in zip(commands, running, outputs):
        if process.returncode:
            raise NativeOpError("%s failed: %s" % (os.path.basename(command[0]), failing_line(output)))


def failing_line(output: str) -> str:
    """The line of a compiler's output that names the first error, else its first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "fatal")
    named = (line for line in lines if any(mark in line.lower() for mark in marks))
    return next(named, lines[0] if lines else "no message")
