"""Starts a program several times on this machine: ``python -m tests.reliability.start_ranks 2 PROGRAM ...``.

Each process has the variables that ``returnn-tf launch`` sets. This is for tests that end single processes: unlike the
command, it leaves the others alone, until one of them ends with an error by itself.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time

from returnn_tf.cli.launch.processes import environments, held_port

GRACE = 20.0  # seconds


def main() -> None:
    """Start the program and wait for all processes; exit with the first code that is not 0."""
    number, *command = sys.argv[1:]
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(int(number))]
        found = environments(ports, "secret", os.environ)
        processes = [subprocess.Popen(command, env=environ) for environ in found]
        while any(process.poll() is None for process in processes):
            time.sleep(0.1)
            if any((process.returncode or 0) > 0 for process in processes):
                _end(processes)
    sys.exit(next((abs(process.returncode) for process in processes if process.returncode), 0))


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the processes that have not ended by themselves a little later; at once those that are stopped."""
    end = time.monotonic() + GRACE
    while time.monotonic() < end and any(process.poll() is None and not _stopped(process) for process in processes):
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a signal has stopped a process, which can't end by itself then."""
    return pathlib.Path("/proc/%d/stat" % process.pid).read_text().rpartition(")")[2].split()[0] == "T"


if __name__ == "__main__":
    main()
