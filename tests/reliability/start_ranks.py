"""Starts a program several times on this machine: ``python -m tests.reliability.start_ranks 2 PROGRAM ...``.

Each process has the variables that ``returnn-tf launch`` sets. This is for tests that end single processes: unlike the
command, it leaves the others alone, until one of them ends with an error by itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from returnn_tf.cli.launch.processes import environments

GRACE = 20.0  # seconds


def free_ports(number: int) -> list[int]:
    """Return ports that nobody uses now."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def main() -> None:
    """Start the program and wait for all processes; exit with the first code that is not 0."""
    number, *command = sys.argv[1:]
    found = environments(free_ports(int(number)), "secret", os.environ)
    processes = [subprocess.Popen(command, env=environ) for environ in found]
    while any(process.poll() is None for process in processes):
        time.sleep(0.1)
        if any((process.returncode or 0) > 0 for process in processes):
            _end(processes)
    sys.exit(next((abs(process.returncode) for process in processes if process.returncode), 0))


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the processes that have not ended by themselves a little later, such as stopped ones."""
    end = time.monotonic() + GRACE
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()


if __name__ == "__main__":
    main()
