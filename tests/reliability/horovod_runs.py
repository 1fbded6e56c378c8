"""Starting several processes by mpirun or horovodrun, really; skips where Horovod can't be installed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Dict, List

import pytest

from tests.reliability import toy

#: Under a loaded machine importing TensorFlow takes half a minute.
SECONDS = 1200


def launchers() -> Dict[str, List[str]]:
    """Name -> command line in front of a program for two processes, of those which are installed."""
    found = {}
    if importlib.util.find_spec("horovod") is None:
        return found
    if shutil.which("mpirun"):
        # as root in containers; more processes than cores
        found["mpirun"] = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    runner = pathlib.Path(sys.executable).with_name("horovodrun")
    if runner.exists():
        found["horovodrun"] = [str(runner), "--gloo", "-np", "2"]
    return found


def launcher(name: str = "") -> List[str]:
    """The command of a launcher, or of any that is there; skips the test without one."""
    there = launchers()
    if not there or (name and name not in there):
        pytest.skip("%s is not installed: make venv could not build Horovod, or there is no MPI" % (name or "Horovod"))
    return there[name or next(iter(there))]


def start(folder: pathlib.Path, command: List[str], arguments: List[str], **env: str) -> "subprocess.Popen[bytes]":
    """A run in a session of its own; its output goes to ``log.txt`` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(str(folder / "log.txt"), "ab") as log:
        return subprocess.Popen(
            command + [sys.executable] + arguments,
            cwd=str(folder),
            env=toy.environment(TF_CPP_MIN_LOG_LEVEL="3", **env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def process_of_rank(folder: pathlib.Path, rank: int) -> int:
    """Process id of a rank that runs in the folder."""
    return process_with(folder, "OMPI_COMM_WORLD_RANK=%d" % rank, "HOROVOD_RANK=%d" % rank)


def process_with(folder: pathlib.Path, *variables: str) -> int:
    """Process id of the program that runs in the folder with one of these in its environment."""
    for entry in os.listdir("/proc"):
        try:
            if os.readlink("/proc/%s/cwd" % entry) != str(folder):
                continue
            environ, program = (
                pathlib.Path("/proc", entry, name).read_bytes().split(b"\0") for name in ("environ", "cmdline")
            )
        except OSError:
            continue
        if any(text.encode() in environ for text in variables) and program[1:3] == [b"-m", b"returnn_tf"]:
            return int(entry)
    raise AssertionError("no process with %s runs in %s" % (variables, folder))
