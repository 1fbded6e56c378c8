"""The run on which reliability is tested: a small net, chunked ragged data, and all that has state in a training.

As a program it is a server which has TensorFlow and the package imported already and forks a run for each request,
because the import takes many times longer than such a run: see :class:`Warm`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from returnn_tf.cli.main import main as returnn_tf_main
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.learning_rate.file import read_file
from tests.loading import fork_loading
from tests.processes import SERVING, import_all, optimize_graphs
from tests.results import reproducible
from tests.waiting import LONG, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPOCHS = 4  # of about 50 steps

#: dropout, noise and shuffled chunks need random numbers, Adam and accumulated gradients have slots, newbob has a past
CONFIG = """
train = {"class": "Task12AXDataset", "num_seqs": 88, "seq_ordering": "random"}
dev = {"class": "Task12AXDataset", "num_seqs": 8, "fixed_random_seed": 1}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 256, "from": "data", "dropout": 0.2},
    "second": {"class": "linear", "activation": "tanh", "n_out": 256, "from": "hidden", "dropout": 0.2},
    "norm": {"class": "batch_norm", "from": "second"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "norm"},
}
chunking = "10:5"
batch_size = 250
max_seqs = 20
optimizer = {"class": "adam"}
accum_grad_multiple_step = 3
gradient_noise = 0.01
learning_rate = 0.02
learning_rate_control = "newbob_rel"
newbob_relative_error_threshold = -0.2
learning_rate_file = "newbob.data"
model = "net/toy"
num_epochs = 4
device = "cpu"
tf_log_dir = None
tf_session_opts = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}

def startup_callback(config):
    from tests.reliability.faults import install
    install(config.typed("fault"))
"""


def write_config(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Return the config file of a toy run in a folder, which is made.

    :param changes: settings instead of or beside those of the toy
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy.config"
    path.write_text(CONFIG + "".join("%s = %r\n" % item for item in changes.items()))
    return path


def arguments(**overrides: Any) -> list[str]:
    """Return the command line of a run in the folder of its config."""
    return ["toy.config"] + [text for key, value in overrides.items() for text in ("++" + key, str(value))]


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that runs the program."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **changes}


def start(folder: pathlib.Path, command: Optional[list[str]] = None, **overrides: Any) -> subprocess.Popen[bytes]:
    """A run in a fresh process and a session of its own, as a user starts it; its output goes to ``log.txt``.

    :param command: in front of the arguments; by default the program itself
    """
    with open(str(folder / "log.txt"), "ab") as log:
        return subprocess.Popen(
            (command or [sys.executable, "-m", "returnn_tf"]) + arguments(**overrides),
            cwd=str(folder),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def text_of(folder: pathlib.Path) -> str:
    """Return what the runs in a folder have printed so far."""
    path = folder / "log.txt"
    return path.read_text(errors="replace") if path.exists() else ""


def final_weights(folder: pathlib.Path, epoch: int = EPOCHS) -> dict[str, np.ndarray]:
    """Return parameters, step counter and state of the optimizer in the checkpoint of an epoch."""
    prefix = str(folder / "net" / ("toy.%03i" % epoch))
    assert checkpoint.validate(prefix) is None
    return {**checkpoint.read(prefix), **checkpoint.read_state(prefix)}


def scores(folder: pathlib.Path) -> dict[int, Any]:
    """Return the learning rates and scores of all epochs, without the times they took."""
    found = read_file(str(folder / "newbob.data"))
    return {epoch: (data.learning_rate, reproducible(data.error)) for epoch, data in found.items()}


def assert_same_end(folder: pathlib.Path, expected: pathlib.Path) -> None:
    """Check that two runs ended alike, bit for bit: weights, state of the optimizer, learning rates and scores."""
    ours, theirs = final_weights(folder), final_weights(expected)
    assert sorted(ours) == sorted(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    assert scores(folder) == scores(expected)


class Warm:
    """Runs of the program, forked from a process that has imported everything. Use it as a context manager.

    The processes that load their data are forked, too; with ``own_process`` they are fresh, as users have them.
    """

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.toy"],
            cwd=str(ROOT),
            env=environment(TF_CPP_MIN_LOG_LEVEL="3"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        SERVING.add(self._server.pid)
        self._codes: dict[int, int] = {}
        self._running: set[int] = set()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *exc: Any) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        for pid in self._running:  # of a test that failed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._server.stdin.close()
        self._server.wait(LONG)
        SERVING.discard(self._server.pid)
        self._server.stdout.close()

    def start(
        self,
        folder: pathlib.Path,
        *,
        own_process: bool = False,
        environ: Mapping[str, str] = types.MappingProxyType({}),
        log: str = "log.txt",
        **overrides: Any,
    ) -> int:
        """Starts a run in a folder with a config, in a session of its own; its process id.

        :param environ: further variables, such as those of a launcher
        :param log: the file in the folder that gets its output
        """
        assert self._server.stdin is not None
        request = [str(folder), arguments(**overrides), own_process, dict(environ), log]
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        pid = int(self._event("pid")[0])
        self._running.add(pid)
        return pid

    def wait(self, pid: int, seconds: float = LONG) -> int:
        """Wait for the end of a run; return its exit code, negative for a signal."""
        end = time.monotonic() + seconds
        while pid not in self._codes:
            done, code = self._event("end", end - time.monotonic())
            self._keep(done, code)
        return self._codes.pop(pid)

    def poll(self, pid: int) -> Optional[int]:
        """Return the exit code of a run if it has ended."""
        assert self._server.stdout is not None
        if pid not in self._codes and select.select([self._server.stdout], [], [], 0)[0]:
            done, code = self._event("end")
            self._keep(done, code)
        return self._codes.pop(pid, None)

    def run(self, folder: pathlib.Path, **overrides: Any) -> int:
        """Run to the end."""
        return self.wait(self.start(folder, **overrides))

    def _keep(self, pid: int, code: int) -> None:
        self._codes[pid] = code
        self._running.discard(pid)

    def _event(self, kind: str, seconds: float = LONG) -> tuple[int, int]:
        """Return the next message of a kind; ends of runs that come before are kept."""
        assert self._server.stdout is not None
        while True:
            if not select.select([self._server.stdout], [], [], max(seconds, 0))[0]:
                raise TimeoutError("the run did not end in time")
            found, pid, code = json.loads(os.read(self._server.stdout.fileno(), _MESSAGE))
            if found == kind:
                return pid, code
            self._keep(pid, code)


def wait_for_text(warm: Warm, pid: int, folder: pathlib.Path, text: str) -> None:
    """Wait until a run has printed a text."""

    def printed() -> bool:
        assert warm.poll(pid) is None, text_of(folder)
        return text in text_of(folder)

    until(printed, "it has not printed %r" % text, details=lambda: text_of(folder))


_MESSAGE = 64  # each message has so many bytes, so that none is read in part


def _send(kind: str, pid: int, code: int = 0) -> None:
    os.write(1, json.dumps([kind, pid, code]).ljust(_MESSAGE - 1).encode() + b"\n")


def _fork_run(folder: str, args: list[str], own_process: bool, environ: dict[str, str], log_name: str) -> int:
    if "HOROVOD_RANK" in environ:
        importlib.import_module("horovod.tensorflow")
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the process that forks ignores
    os.chdir(folder)
    os.environ.update(environ)
    log = os.open(log_name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    fork_loading(not own_process)
    code = 1
    try:
        code = returnn_tf_main(args)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _serve() -> None:
    """Fork a run for each line of the input, and report its process id and, later, how it ended."""
    import_all()
    optimize_graphs(False)  # the runs are compared with each other, and are short
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = open(0, "rb", buffering=0)  # unbuffered, so that select sees what is left
    running: list[int] = []
    open_input = True
    while open_input or running:
        if open_input and select.select([requests], [], [], 0.02)[0]:
            line = requests.readline()
            open_input = bool(line)
            if line:
                running.append(_fork_run(*json.loads(line)))
                _send("pid", running[-1])
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.remove(pid)
                _send("end", pid, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        if not open_input:
            time.sleep(0.02)


if __name__ == "__main__":
    _serve()
