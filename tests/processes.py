"""Runs Python programs in processes that begin with TensorFlow and the package imported: 4 seconds otherwise.

A server, started once by a process of pytest, imports them, runs no op, and forks for every program. The program has
its own session, folder, environment, arguments, ``sys.path`` and output, and is imported and run as by ``python``. Its
trainings fork the processes that load data, and its exports those that check them: from a server of the program, forked
before it begins, as a process in which TensorFlow has run ops can't be forked. What the start of a process, its
signals, its imports or the environment of TensorFlow are the subject of starts a process by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn, Optional

ROOT = pathlib.Path(__file__).parents[1]


class _Server:
    """The server of this process: where it reads requests and answers."""

    requests: Optional[BinaryIO] = None
    answers: Optional[BinaryIO] = None


#: Of the server, whichever test is the first that needs it: what that one changes is not for the programs of others.
_ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
_ENVIRONMENT.pop("PYTHONPATH", None)

#: Processes that run things for many tests, until they have been waited for: only then the system counts their seconds
#: and those of what they ran.
SERVING: set[int] = set()


def computing() -> float:
    """Return the seconds of computing, so far, of `SERVING`, and of what they ran that has ended."""
    return sum(map(_seconds_of, SERVING))


def _seconds_of(pid: int) -> float:
    """Return the seconds of computing of a process and of its children that it has waited for."""
    fields = pathlib.Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # user and system, of both


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
    if _Server.requests is None or _Server.answers is None:
        _start()
    requests, answers = _Server.requests, _Server.answers
    assert requests is not None and answers is not None
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        arguments = [os.fspath(word) for word in arguments]
        where = os.path.abspath(os.getcwd() if cwd is None else cwd)
        environment = dict(os.environ if env is None else env)
        requests.write(json.dumps([arguments, where, environment, *paths]).encode() + b"\n")
        pid = json.loads(answers.readline())
        try:
            late = not select.select([answers], [], [], timeout)[0]
        except BaseException:  # such as Ctrl-C, which programs in sessions of their own do not get
            _Server.requests = None  # this one still has to say how the program ended
            _kill(pid)
            raise
        if late:
            _kill(pid)
        code = json.loads(answers.readline())
        output, errors = (pathlib.Path(path).read_text("utf8", "replace") for path in paths)
    if late:
        raise subprocess.TimeoutExpired(arguments, timeout, output, errors)
    return subprocess.CompletedProcess([sys.executable, *arguments], code, output, errors)


def _kill(pid: int) -> None:
    """Kill a program and what it started, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def fork_children() -> None:
    """Fork also the Python programs that this program starts by ``subprocess.run`` with streams of its own."""
    fresh = subprocess.run

    def forked(command: Sequence[str], **options: Any) -> Any:
        if command[0] != sys.executable or not options.keys() <= {"cwd", "env", "check"}:
            return fresh(command, **options)
        done = run(command[1:], cwd=options.get("cwd"), env=options.get("env"))
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        if options.get("check"):
            done.check_returncode()
        return done

    subprocess.run = forked  # type: ignore[assignment]


def run_check(program: str, arguments: Sequence[str], cwd: str) -> tuple[int, str]:
    """Run the program that computes an example with an export, in place of a fresh process."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    done = run([program, *arguments], cwd=cwd, env={**os.environ, "PYTHONPATH": paths})
    return done.returncode, done.stderr


def _start() -> None:
    code = "import sys; sys.path.insert(0, %r); from tests.processes import serve; serve()" % str(ROOT)
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, env=_ENVIRONMENT, cwd="/")
    SERVING.add(server.pid)
    atexit.register(_end, server)
    _Server.requests, _Server.answers = server.stdin, server.stdout  # type: ignore[assignment]


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(60)
    SERVING.discard(server.pid)


def _fork_server() -> bool:
    """Fork a server for the program of this process; True in the new one, whose input and output it is asked by."""
    (request, requests), (answers, answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        for file, number in ((request, 0), (answer, 1)):
            os.dup2(file, number)
        for file in (request, requests, answers, answer):
            os.close(file)
        return True
    os.close(request)
    os.close(answer)
    _Server.requests, _Server.answers = open(requests, "wb", 0), open(answers, "rb", 0)
    atexit.register(_end_forked, pid, _Server.requests)
    return False


def _end_forked(pid: int, requests: BinaryIO) -> None:
    """Have it end and wait for it, so that its seconds count. Processes that load data may have the pipe open, too."""
    with contextlib.suppress(ChildProcessError, BrokenPipeError):
        requests.write(b"\n")
        os.waitpid(pid, 0)


def collect_seldom() -> None:
    """Have the garbage collector pass seldom: tracing makes millions of objects, few of them in cycles.

    With the default thresholds it passes over TensorFlow's modules again and again.
    """
    gc.set_threshold(50_000, 20, 20)


def keep_one_stack() -> None:
    """Give all ops the same stack of Python.

    TensorFlow keeps that of each op to show it in errors of steps, which takes a fifth of tracing below pytest's own
    frames, and a tenth in a program.
    """
    stacks = importlib.import_module("tensorflow.python.util.tf_stack")
    stack = stacks.extract_stack()
    stacks.extract_stack = lambda stacklevel=1: stack


def trace_once() -> None:
    """Let the tracing of a graph wait for each native op that isn't compiled yet, instead of tracing the graph again.

    Otherwise tests that count what is traced, or what is logged, would see whether they are the first to need an op.
    """
    functions = importlib.import_module("returnn_tf.compiler.feed_function")
    functions.with_ops_at_once = lambda trace: trace()


def optimize_graphs(optimized: bool) -> None:
    """Let TensorFlow optimize the graphs that it runs from now on, or run them as they are."""
    tf = importlib.import_module("tensorflow")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimized})


def import_all() -> None:
    """Import TensorFlow and what programs use of the package, for the processes that are forked from this one."""
    import h5py  # noqa: F401

    import returnn_tf.cli.main
    import returnn_tf.cli.run
    from returnn_tf.datasets.core.registry import DATASETS
    from returnn_tf.graph.registry import LAYERS
    from returnn_tf.native.errors import NativeOpError
    from returnn_tf.native.toolchain import find_toolchain
    from returnn_tf.tasks.registry import TASKS
    from returnn_tf.util.lazy_tf import tf

    assert tf.function
    assert returnn_tf.Network and returnn_tf.Trainer  # which are imported when they are used
    for registry in (DATASETS, LAYERS, TASKS):  # as are their modules
        registry.load()
    with contextlib.suppress(NativeOpError):
        find_toolchain()
    collect_seldom()
    keep_one_stack()
    gc.collect()
    gc.freeze()  # otherwise each of them passes over all modules, which copies their memory


def serve() -> NoReturn:
    """Fork for each line of the input. In the new process this runs the program, and ends with it."""
    import returnn_tf.export.saved_model.run
    from tests.loading import fork_loading

    import_all()
    fork_loading()
    returnn_tf.export.saved_model.run._run_program = run_check
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests" and name != __name__]:
        del sys.modules[name]  # what a program imports itself; it finds the server here

    for line in open(0, "rb", buffering=0, closefd=False):
        if not line.strip():
            break
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if _fork_server():
                continue
            _end_with(_exit_code_of(lambda request=line: _become(*json.loads(request))))
        _tell(pid)
        _, status = os.waitpid(pid, 0)
        _tell(os.waitstatus_to_exitcode(status))
    os._exit(0)


def _exit_code_of(program: Callable[[], None]) -> int:
    """Return what Python would exit with after a program, whose error is shown."""
    try:
        program()
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return exc.code or 0
        print(exc.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _end_with(code: int) -> NoReturn:
    """Wait for threads, call what was registered for the exit, and exit.

    Python would free each object of TensorFlow's modules after that, which takes a second of computing.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed by the program
        sys.stdout.flush()
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _tell(value: int) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


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
