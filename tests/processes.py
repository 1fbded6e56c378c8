"""Runs Python programs in processes that begin with TensorFlow and the package imported: 4 seconds otherwise.

A server, started once by a process of pytest, imports them, runs no op, and forks for every program. The program has
its own session, folder, environment, arguments, ``sys.path`` and output, and is imported and run as by ``python``. Its
trainings fork the processes that load data. What the start of a process, its signals, its imports or the environment of
TensorFlow are the subject of starts a process by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from typing import Any, Optional

ROOT = pathlib.Path(__file__).parents[1]


class _Server:
    """The server of this process, and the seconds of computing of what it ran."""

    process: Optional[subprocess.Popen[bytes]] = None
    seconds = 0.0


def computing() -> float:
    """Return the seconds of computing of all programs so far, and of what they started."""
    return _Server.seconds


def run(
    arguments: Sequence[str],
    *,
    cwd: Any = None,
    env: Optional[Mapping[str, str]] = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)``.

    :param arguments: ``-m MODULE``, ``-c CODE`` or a path, and the arguments of the program
    :raises subprocess.TimeoutExpired: it did not end in time, and was killed
    """
    if _Server.process is None or _Server.process.poll() is not None:
        _Server.process = _start()
    server = _Server.process
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        arguments = [os.fspath(word) for word in arguments]
        where = os.path.abspath(os.getcwd() if cwd is None else cwd)
        environment = dict(os.environ if env is None else env)
        server.stdin.write(json.dumps([arguments, where, environment, *paths]).encode() + b"\n")
        server.stdin.flush()
        (pid,) = json.loads(server.stdout.readline())
        try:
            late = not select.select([server.stdout], [], [], timeout)[0]
        except BaseException:  # such as Ctrl-C, which programs in sessions of their own do not get
            _Server.process = None  # this one still has to say how the program ended
            _kill(pid)
            raise
        if late:
            _kill(pid)
        code, seconds = json.loads(server.stdout.readline())
        _Server.seconds += seconds
        output, errors = (pathlib.Path(path).read_text("utf8", "replace") for path in paths)
    if late:
        raise subprocess.TimeoutExpired(arguments, timeout, output, errors)
    return subprocess.CompletedProcess([sys.executable, *arguments], code, output, errors)


def _kill(pid: int) -> None:
    """Kill a program and what it started, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _start() -> subprocess.Popen[bytes]:
    code = "import sys; sys.path.insert(0, %r); from tests.processes import serve; serve()" % str(ROOT)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, env=environment, cwd="/")
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(60)


def serve() -> None:
    """Fork for each line of the input. In the new process this runs the program, and returns at its end."""
    import h5py  # noqa: F401
    import tensorflow  # noqa: F401

    import returnn_tf.cli.main
    from tests.loading import fork_loading

    assert returnn_tf.Network and returnn_tf.Trainer  # which are imported when they are used
    fork_loading()
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]

    for line in open(0, "rb", buffering=0, closefd=False):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            _become(*json.loads(line))
            return
        _tell(pid)
        _, status, usage = os.wait4(pid, 0)
        _tell(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)


def _tell(*values: float) -> None:
    os.write(1, json.dumps(values).encode() + b"\n")


def _become(arguments: list[str], cwd: str, environment: dict[str, str], output: str, errors: str) -> None:
    """Run a program in this process."""
    for number, path in enumerate((os.devnull, output, errors)):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    kind, *rest = arguments
    if kind == "-m":
        sys.argv[:] = rest
        sys.path.insert(0, cwd)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")
