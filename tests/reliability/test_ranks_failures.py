"""A rank that dies, falls silent or hangs, really: all ranks end within a minute and name it."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from returnn_tf.engine.monitoring.status_file import read_status
from tests.reliability import ranks_runs, toy
from tests.tiers import usual
from tests.waiting import until

pytestmark = pytest.mark.slow  # each starts processes

PATIENCE = 25  # seconds, horovod_timeout; a loaded machine may stop any process for some
GIVEN = 180  # seconds until all have ended: within 60 on a machine that has nothing else to do

CONFIG = """
import returnn.tf.horovod as TFHorovod
import socket
import time

STRANGERS = []

def create_server(*args, create=socket.create_server, **options):
    server = create(*args, **options)
    for text in (b"[]\\n", b"hello", b""):  # before the ranks come, and they stay
        STRANGERS.append(socket.create_connection(("127.0.0.1", server.getsockname()[1])))
        STRANGERS[-1].sendall(text)
    return server

socket.create_server = create_server

def slow(dataset, **options):
    position = 0
    while dataset.is_less_than_num_seqs(position):
        if HANGS and position == 20 and TFHorovod.get_ctx().rank() == 1:
            time.sleep(1000)
        yield position, 0, dataset.get_seq_length(position)["data"]
        position += 1

HANGS = %r
chunking = slow if HANGS else None
train = {"class": "Task12AXDataset", "num_seqs": 400}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
batch_size = 1000
max_seqs = 1
learning_rate = 0.001
model = "net/toy"
num_epochs = 4000
device = "cpu"
use_horovod = True
horovod_timeout = %d
tf_log_dir = None
log_verbosity = 5
"""


LAUNCHERS = ["start_ranks", "mpirun", "horovodrun"]


def begin(folder: pathlib.Path, launcher: str, *, hangs: bool = False) -> subprocess.Popen[bytes]:
    """Start a training without end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.config").write_text(CONFIG % (hangs, PATIENCE))
    return ranks_runs.start(folder, ranks_runs.launcher(launcher), ["-m", "returnn_tf", "toy.config"])


def wait_for(folder: pathlib.Path, text: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + ranks_runs.SECONDS
    while text not in toy.text_of(folder):
        assert process.poll() is None and time.monotonic() < end, toy.text_of(folder)[-4000:]
        time.sleep(0.2)


def ended(folder: pathlib.Path, process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait for the end, which must be an error; return what was printed."""
    try:
        assert process.wait(seconds) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return toy.text_of(folder)


WORDS = {signal.SIGKILL: "has ended or was killed", signal.SIGSTOP: "has been silent for"}


@pytest.mark.long  # test_ranks_faults.py has a stopped one, test_launch.py a killed one, test_watchdog.py strangers
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("number", WORDS)
def test_a_rank_is_gone(tmp_path: pathlib.Path, launcher: str, number: int) -> None:
    """Killed, or stopped with its machine. Strangers had connected to the chief."""
    process = begin(tmp_path, launcher)
    victim = 0
    try:
        wait_for(tmp_path, "step 5,", process)
        victim = ranks_runs.process_of_rank(tmp_path, 1)
        os.kill(victim, number)
        text = ended(tmp_path, process, GIVEN)
    finally:
        if victim and number == signal.SIGSTOP:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
    words = WORDS[signal.Signals(number)]
    assert "rank 1 on %s" % socket.gethostname() in text and words in text
    reason = read_status(str(tmp_path / "net" / ".toy.status.json"))["ended"]["reason"]
    assert "rank 1 on %s" % socket.gethostname() in reason and words in reason


@pytest.mark.long  # test_ranks_faults.py has one that hangs
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_hangs(tmp_path: pathlib.Path, launcher: str) -> None:
    """In reading its data, while the other one waits for it in the sum of the gradients."""
    process = begin(tmp_path, launcher, hangs=True)
    wait_for(tmp_path, "step 10,", process)
    text = ended(tmp_path, process, GIVEN)
    assert "rank 1 on %s" % socket.gethostname() in text and "has made no progress" in text


@pytest.mark.parametrize("number", usual([1, 3], [1]))
def test_another_number_of_ranks_resumes(warm: toy.Warm, tmp_path: pathlib.Path, number: int) -> None:
    """Two are stopped in the middle of an epoch; others do the sequences that are left of it. All are forked."""
    train = {"class": "Task12AXDataset", "num_seqs": 60}
    network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
    settings = {"accum_grad_multiple_step": 1, "chunking": None, "max_seqs": 1, "num_epochs": 1}
    toy.write_config(tmp_path, fault=("step", 10, 1), train=train, network=network, **settings)
    waiting = tmp_path / "waiting.0"
    with ranks_runs.forked(warm, tmp_path) as pids:
        until(waiting.exists, "it does not come to the step", ranks_runs.SECONDS, details=lambda: toy.text_of(tmp_path))
        os.kill(pids[0], signal.SIGUSR1)
        assert [warm.wait(pid, GIVEN) for pid in pids] == [128 + signal.SIGUSR1] * 2, toy.text_of(tmp_path)[-4000:]
    assert "Stopped by SIGUSR1" in toy.text_of(tmp_path)
    done = int(re.findall(r"toy\.001\.step(\d+)\.index", " ".join(os.listdir(tmp_path / "net")))[0])
    with ranks_runs.forked(warm, tmp_path, number) as pids:
        assert [warm.wait(pid, GIVEN) for pid in pids] == [0] * number, toy.text_of(tmp_path)[-4000:]
    steps = done + -(-(60 - 2 * done) // number)
    assert "Resuming within epoch 1 after %d batches" % done in toy.text_of(tmp_path)
    assert "train epoch 1, finished after %d steps" % steps in toy.text_of(tmp_path)


WRONG: dict[str, list[str]] = {
    "import sys; sys.modules['horovod'] = None": [
        "Horovod is not installed",
        "pip install",
        "HOROVOD_WITH_TENSORFLOW=1",
    ],
    "import sys; from importlib.machinery import ModuleSpec; from importlib.util import module_from_spec; "
    "sys.modules['horovod'] = module_from_spec(ModuleSpec('horovod', None, is_package=True)); "
    "sys.modules['horovod'].__path__ = ['%s']": ["built without TensorFlow", "pip uninstall"],
}


@pytest.mark.parametrize("code", WRONG, ids=["missing", "without_tensorflow"])
def test_no_usable_horovod(tmp_path: pathlib.Path, code: str) -> None:
    """Asked for, but not there: how to install it."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('Extension horovod.tensorflow has not been built')\n")
    program = (
        (code % tmp_path if "%s" in code else code)
        + "\nfrom returnn_tf.cli.main import main\n"
        + "sys.exit(main(['toy.config', '++use_horovod', 'True']))\n"
    )
    toy.write_config(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=str(tmp_path), env=toy.environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    for words in WRONG[code]:
        assert words in done.stderr
    assert not (tmp_path / "net").exists()


def test_another_world_than_the_scheduler_started(tmp_path: pathlib.Path) -> None:
    """A single process where Slurm has started two: each would be rank 0 of 1."""
    ranks_runs.launcher()
    toy.write_config(tmp_path)
    command = [sys.executable, "-m", "returnn_tf", "toy.config", "++use_horovod", "True"]
    env = toy.environment(SLURM_NTASKS="2", TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run(command, cwd=str(tmp_path), env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Horovod sees 1 process, but Slurm's SLURM_NTASKS = 2" in done.stderr and "mpirun -np 2" in done.stderr
    assert not (tmp_path / "net").exists()


@pytest.mark.long
def test_elastic(tmp_path: pathlib.Path) -> None:
    """One of three processes is killed: the others go on from the last checkpoint within the epoch and finish it."""
    horovodrun = ranks_runs.launcher("horovodrun")[0]
    (tmp_path / "toy.config").write_text(CONFIG % (False, PATIENCE))
    # a host on which a process died gets no other one, so the one to be killed has a host of its own
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\n[ -f %s ] || echo 127.0.0.1:1\n" % (tmp_path / "lost"))
    hosts.chmod(0o755)
    command = [horovodrun, "-np", "3", "--min-np", "2", "--host-discovery-script", str(hosts)]
    command += ["--start-timeout", "300", "--elastic-timeout", "300"]
    arguments = ["-m", "returnn_tf", "toy.config", "++num_epochs", "3", "++save_every_steps", "20"]
    process = ranks_runs.start(tmp_path, command, arguments)
    wait_for(tmp_path, "Saved net/toy.002.step", process)
    (tmp_path / "lost").touch()
    os.kill(ranks_runs.process_with(tmp_path, "HOROVOD_HOSTNAME=127.0.0.1"), signal.SIGKILL)
    try:
        assert process.wait(ranks_runs.SECONDS) == 0, toy.text_of(tmp_path)[-4000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    text = toy.text_of(tmp_path)
    assert "Continuing with 2 processes" in text and "Resuming within epoch" in text
    assert (tmp_path / "net" / "toy.003.index").exists()
