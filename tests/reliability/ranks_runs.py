"""Starting several processes, really: for either engine; skips where Horovod was not built for it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Callable

import pytest

from returnn_tf.cli.launch.processes import environments, held_port
from returnn_tf.engine.distributed import membership
from tests import processes
from tests.reliability import toy

#: Under a loaded machine importing TensorFlow takes half a minute.
SECONDS = 1200


_BUILT = "import horovod.tensorflow as hvd; print('mpi' * hvd.mpi_built(), 'gloo' * hvd.gloo_built())"
_REBUILD = "make venv builds Horovod with MPI once mpicxx is there (apt-get install openmpi-bin libopenmpi-dev)"


@functools.cache
def _built_with() -> tuple[tuple[str, ...], str]:
    """Return which of "mpi" and "gloo" Horovod was built with, and the reason if it cannot be used at all."""
    if importlib.util.find_spec("horovod") is None:
        return (), "Horovod is not installed: make horovod tries to build it"
    # in a process of its own: horovod and TensorFlow are not for the process of the tests
    done = processes.run(["-c", _BUILT], env=toy.environment(TF_CPP_MIN_LOG_LEVEL="3"))
    if done.returncode:
        return (), "Horovod cannot be imported: %s" % done.stderr.strip().rpartition("\n")[2]
    return tuple(done.stdout.split()), ""


def _without_mpirun() -> str:
    """Return why two processes cannot be started by mpirun; empty if they can."""
    built, reason = _built_with()
    if reason:
        return reason
    if "mpi" not in built:
        return "Horovod was built without MPI: " + _REBUILD
    return "" if shutil.which("mpirun") else "there is no mpirun: apt-get install openmpi-bin"


def _without_horovodrun() -> str:
    """Return why two processes cannot be started by horovodrun; empty if they can."""
    built, reason = _built_with()
    if reason:
        return reason
    if "gloo" not in built:
        return "Horovod was built without Gloo: HOROVOD_WITH_GLOO=1 builds it in"
    return "" if _HOROVODRUN.exists() else "there is no horovodrun beside %s" % sys.executable


_HOROVODRUN = pathlib.Path(sys.executable).with_name("horovodrun")
_OBSTACLES: dict[str, Callable[[], str]] = {"mpirun": _without_mpirun, "horovodrun": _without_horovodrun}
#: The launchers of each engine.
ENGINES = {"tensorflow": ["start_ranks"], "horovod": ["mpirun", "horovodrun"]}
#: Variables in which launchers state the rank.
RANKS = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", membership.RANK)
#: What stands before a program for several processes, but for their number.
_COMMANDS = {
    # as root in containers; more processes than cores
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np"],
    "horovodrun": [str(_HOROVODRUN), "--gloo", "-np"],
    "start_ranks": [sys.executable, "-m", "tests.reliability.start_ranks"],
}


def launcher(name: str = "", engine: str = "horovod", number: int = 2) -> list[str]:
    """Return the command of a launcher, or of the first of an engine that works here; skip the test without one.

    :param number: of processes
    """
    reasons = {each: _OBSTACLES.get(each, str)() for each in ([name] if name else ENGINES[engine])}
    for each, reason in reasons.items():
        if not reason:
            return [*_COMMANDS[each], str(number)]
    pytest.skip("; ".join(dict.fromkeys(reasons.values())))


def start(folder: pathlib.Path, command: list[str], arguments: list[str], **env: str) -> subprocess.Popen[bytes]:
    """Start a run in a session of its own; its output goes to ``log.txt`` in the folder."""
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


@contextlib.contextmanager
def forked(warm: toy.Warm, folder: pathlib.Path, number: int = 2) -> Iterator[list[int]]:
    """Start ranks of TensorFlow's engine that are forked; yield their process ids. One is no rank, but trains alone."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(number)]
        environs = environments(ports, secrets.token_hex(), {}) if number > 1 else [{}]
        yield [warm.start(folder, environ=environ) for environ in environs]


def process_of_rank(folder: pathlib.Path, rank: int) -> int:
    """Return the process id of a rank that runs in the folder."""
    return process_with(folder, *("%s=%d" % (name, rank) for name in RANKS))


def process_with(folder: pathlib.Path, *variables: str) -> int:
    """Return the process id of the program that runs in the folder with one of these in its environment."""
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
