"""Starts a program several times on this machine: ``python -m tests.reliability.start_ranks 2 PROGRAM ...``.

Each process has the variables that ``returnn-tf launch`` sets. This is for tests that end single processes: unlike the
command, it leaves the others alone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from returnn_tf.cli.launch.processes import environments


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
    codes = [process.wait() for process in processes]
    sys.exit(next((abs(code) for code in codes if code), 0))


if __name__ == "__main__":
    main()
