"""returnn-tf launch: small programs as ranks, in real processes, as signals, environment and ends are the subject."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from returnn_tf.cli.launch.processes import environments
from returnn_tf.cli.main import main
from returnn_tf.engine.distributed.membership import REPORT, find, report_done, report_to
from tests.waiting import LONG, until

ROOT = Path(__file__).resolve().parents[2]
_LAUNCH = """
import sys
sys.path.insert(0, %r)
from returnn_tf.cli.launch import processes
processes._PATIENCE, processes._LAST_SECONDS, processes._PAUSE = 0.5, 0.5, 0.05
number, *least = map(int, sys.argv[1].split("-"))
sys.exit(processes.run([sys.executable, "-c", sys.argv[2], *sys.argv[3:]], number, *least))
"""
#: A line is written at once, so that those of two ranks don't mix where Python does not buffer its output.
_RANK = """
import os, signal, subprocess, sys, time
rank = int(os.environ["RETURNN_TF_RANK"])
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""


def _command(number: Union[int, str], program: str, *args: str) -> list[str]:
    """Return the command; the number may be "3-2": at least two of three."""
    return [sys.executable, "-c", _LAUNCH % str(ROOT), str(number), _RANK + program, *args]


def _launched(number: Union[int, str], program: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the program in several processes to their end."""
    return subprocess.run(_command(number, program, *args), capture_output=True, text=True, timeout=LONG)


def _alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _numbers(folder: Path, count: int) -> list[int]:
    """Wait until so many files of the folder have a number as their name, and return these."""
    until(lambda: len(list(folder.iterdir())) >= count, "all processes have started")
    return [int(path.name) for path in folder.iterdir()]


def test_each_rank_knows_its_place_and_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(9)))
    ranks = environments([11, 12, 13], "s", {"HOME": "/h"})
    members = [find(environ) for environ in ranks]
    assert [(m.rank, m.size, m.local_rank, m.local_size) for m in members if m] == [(r, 3, r, 3) for r in range(3)]
    assert {m.addresses for m in members if m} == {("127.0.0.1:11", "127.0.0.1:12", "127.0.0.1:13")}
    assert {m.token for m in members if m} != {m.token for e in environments([11, 12, 13], "t", {}) if (m := find(e))}
    assert all(environ["HOME"] == "/h" and environ["OMP_NUM_THREADS"] == "3" for environ in ranks)


@pytest.mark.parametrize(
    "environ, threads",
    [
        ({"OMP_NUM_THREADS": "2"}, "2"),
        ({"SLURM_CPUS_PER_TASK": "8"}, "4"),
        ({"SLURM_CPUS_PER_TASK": "1"}, "1"),
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}, "3"),
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}, "3"),
    ],
)
def test_cores_that_are_given(environ: dict[str, str], threads: str) -> None:
    """By the user for each process; by Slurm for the task that all of them are, or for tasks that are processes."""
    assert {env["OMP_NUM_THREADS"] for env in environments([11, 12], "s", environ)} == {threads}


def test_output() -> None:
    """Of the first rank as it is; of the others by lines, also the last one, with the rank unless it is named."""
    done = _launched(
        2,
        "sys.stdout.write('a\\nrank %d/2 on b: c\\nd' % rank + '\\n' * (not rank))\n"
        "sys.stderr.write('e\\n' + 'f' * 100000)\n",
    )
    assert done.returncode == 0
    own, other = ["a", "rank 0/2 on b: c", "d"], ["rank 1: a", "rank 1/2 on b: c", "rank 1: d"]
    assert sorted(done.stdout.splitlines()) == sorted(own + other)
    assert done.stderr.count("e\n") == 2 and done.stderr.count("rank 1: e\n") == 1
    assert done.stderr.count("f") == 200000 and "rank 1: fff" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "codes, expected",
    [
        ([0, 0], 0),
        ([0, 2], 2),
        ([1, 0], 1),
        ([138, 138], 138),
        ([0, 143, 0], 143),
        ([138, 1], 1),
        ([0, 3], 3),
        ([99, 143], 99),
        ([0, -signal.SIGSEGV], 128 + signal.SIGSEGV),
    ],
    ids=str,
)
def test_exit_codes(codes: list[int], expected: int) -> None:
    done = _launched(
        len(codes),
        "code = %r[rank]\nif code < 0:\n    os.kill(os.getpid(), -code)\nsys.exit(code)" % codes,
    )
    assert done.returncode == expected
    failed = [(rank, code) for rank, code in enumerate(codes) if code in (1, 2, 3, 99) or code < 0]
    assert done.stderr.count("launch: rank") == len(failed)
    for rank, code in failed:
        assert "launch: rank %d (process " % rank in done.stderr
        assert ("was killed by SIGSEGV" if code < 0 else "has ended with exit code %d" % code) in done.stderr


@pytest.mark.slow
def test_a_rank_that_is_done_may_have_an_exit_code_of_its_own() -> None:
    """That of ``requeue_exit_code``: the others have the time that they need."""
    program = (
        "from returnn_tf.engine.distributed.membership import report_done\n"
        "time.sleep(0 if rank else 2)\nreport_done(os.environ)\nsys.exit(99)"
    )
    done = _launched(2, program)
    assert (done.returncode, done.stderr) == (99, "")


def test_a_report_goes_to_the_pipe_of_this_process_only(tmp_path: Path) -> None:
    """A child inherits the variable, but not the pipe: another file may have its number."""
    end, pipe = os.pipe()
    environ = {REPORT: report_to(pipe)}
    report_done(environ)
    report_done({})
    assert os.read(end, 10) == b"."
    with (tmp_path / "other").open("w+") as other:
        os.dup2(other.fileno(), pipe)
        report_done(environ)
        os.close(pipe)
        report_done(environ)
    assert not (tmp_path / "other").read_text()
    os.close(end)


#: Writes a line for each start, and does then what the first argument says for its rank and the number of ranks.
_STARTS = (
    "size = os.environ['RETURNN_TF_ADDRESSES'].count(',') + 1\n"
    "with open(sys.argv[2], 'a') as file:\n"
    "    file.write('%d/%d %s\\n' % (rank, size, os.environ.get('CUDA_VISIBLE_DEVICES')))\n"
    "exec(sys.argv[1])\n"
)
_STOPPED = "if rank: os.kill(os.getpid(), signal.SIGSTOP)\nsys.exit(size - 1)"
#: A mistake in the config of the first rank, while the other one does not hear SIGTERM, as in an op of TensorFlow.
_DEAF = "if not rank: sys.exit(2)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)"
_KILLED = "if rank == 1 and size > %d: os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, gpus, behaviour, code, starts",
    [
        ("3-1", "a,b,c,d", _KILLED % 2, 0, {3: "a,b,c,d", 2: "a,c,d"}),
        ("3-1", "a", _KILLED % 1, 0, {3: "a", 2: "a", 1: "a"}),
        ("3-2", None, _KILLED % 1, 137, {3: None, 2: None}),
        ("2-1", None, "sys.exit(2 * rank)", 2, {2: None}),
        ("2-1", None, "rank and os._exit(3)", 3, {2: None}),
        ("2-1", None, _STOPPED, 0, {2: None, 1: None}),
        ("2-1", None, _DEAF, 2, {2: None}),
        ("2", None, _KILLED % 1, 137, {2: None}),
    ],
    ids=["one", "one_each_time", "too_few", "error", "exit", "stopped", "deaf", "not_wanted"],
)  # fmt: skip
def test_starting_again_without_those_that_were_killed(
    number: str,
    gpus: Optional[str],
    behaviour: str,
    code: int,
    starts: dict[int, Optional[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpus is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    done = _launched(number, _STARTS, behaviour, str(tmp_path / "starts"))
    assert done.returncode == code, done.stderr
    expected = ["%d/%d %s" % (rank, size, gpus) for size, gpus in starts.items() for rank in range(size)]
    assert sorted((tmp_path / "starts").read_text().splitlines()) == sorted(expected)
    assert done.stderr.count("starting again with") == len(starts) - 1
    assert ("rank 1: stopped by a signal, ended by force" in done.stderr) == (behaviour == _STOPPED)


@pytest.mark.slow
@pytest.mark.parametrize("failed, stubborn", [(0, [1, 2]), (2, [0])], ids=str)
def test_when_one_fails_none_is_left(failed: int, stubborn: list[int], tmp_path: Path) -> None:
    """Neither one that ignores SIGTERM, nor what the ranks have started."""
    done = _launched(
        3,
        "open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"
        "if rank in %r:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "open(os.path.join(sys.argv[1], str(child.pid)), 'w').close()\n"
        "while rank != %d or len(os.listdir(sys.argv[1])) < 6:\n"
        "    time.sleep(0.01)\n"
        "sys.exit(2)" % (stubborn, failed),
        str(tmp_path),
    )
    assert done.returncode == 2 and "launch: rank %d (process " % failed in done.stderr
    left = [str(rank) for rank in range(3) if rank != failed]
    assert "launch: ranks %s: still running, ended by force" % ", ".join(left) in done.stderr
    pids = _numbers(tmp_path, 6)
    until(lambda: not any(map(_alive, pids)), "all have ended")


@pytest.mark.slow
def test_a_stopped_rank_leaves_the_others_time_to_save() -> None:
    done = _launched(2, "time.sleep(0 if rank else 2)\nsay('saved', rank)\nsys.exit(138)")
    assert (done.returncode, done.stderr) == (138, "")
    assert sorted(done.stdout.splitlines()) == ["rank 1: saved 1", "saved 0"]


@contextlib.contextmanager
def _running(number: Union[int, str], program: str, folder: Path) -> Any:
    """Start the program; kill the launcher at the end, if it is still there."""
    process = subprocess.Popen(
        _command(number, program, str(folder)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_signals_reach_each_rank_once(signum: signal.Signals, tmp_path: Path) -> None:
    program = (
        "numbers = []\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):\n"
        "    signal.signal(number, lambda number, frame: numbers.append(number))\n"
        "open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"
        "while not numbers:\n"
        "    time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "say('got', [int(number) for number in numbers])\n"
        "sys.exit(128 + numbers[0])\n"
    )
    with _running("2-1", program, tmp_path) as process:
        _numbers(tmp_path, 2)
        process.send_signal(signum)
        output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 128 + signum
    assert sorted(output.splitlines()) == ["got [%d]" % signum, "rank 1: got [%d]" % signum]


@pytest.mark.slow
def test_a_killed_launcher_leaves_nobody(tmp_path: Path) -> None:
    program = "open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\ntime.sleep(300)"
    with _running(3, program, tmp_path) as process:
        pids = _numbers(tmp_path, 3)
        assert all(map(_alive, pids))
        process.kill()
        until(lambda: not any(map(_alive, pids)), "all have ended")


@pytest.mark.slow
def test_ports_are_free_for_the_ranks_and_for_nobody_else() -> None:
    """A server of a rank may listen, a program that asks for any port gets another one."""
    program = (
        "import json, socket\n"
        "port = int(os.environ['RETURNN_TF_ADDRESSES'].split(',')[rank].rpartition(':')[2])\n"
        "others = [socket.create_server(('', 0)) for _ in range(50)]\n"
        "server = socket.create_server(('', port))\n"
        "say(json.dumps([other.getsockname()[1] for other in others if other.getsockname()[1] == port]))\n"
    )
    done = _launched(2, program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[]", "rank 1: []"]


@pytest.mark.parametrize(
    "args, error",
    [
        ([], "the following arguments are required: --processes, CONFIG"),
        (["--processes", "2"], "the following arguments are required: CONFIG"),
        (["my.config"], "the following arguments are required: --processes"),
        (["--processes", "0", "my.config"], "argument --processes: must be at least 1, not '0'"),
        (["--processes=two", "my.config"], "argument --processes: expected a whole number, not 'two'"),
        (["--process", "2", "my.config"], "--processes"),
        (["--processes", "2", "--min-processes", "0", "x"], "argument --min-processes: must be at least 1, not '0'"),
        (["--processes", "2", "--min-processes", "3", "x"], "--min-processes 3 is more than --processes 2"),
        (["--processes", "2", "launch", "my.config"], "launch: expected a config, not launch once more"),
    ],
    ids=str,
)
def test_wrong_arguments(args: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *args]) == 2
    assert error in capsys.readouterr().err


def test_what_each_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program with the arguments after those of launch, whatever they are."""
    seen: list[Any] = []
    monkeypatch.setattr("returnn_tf.cli.launch.processes.run", lambda *args: seen.append(args) or 7)
    assert main(["launch", "--processes=3", "--min-processes", "2", "train", "my.config", "++x", "--processes"]) == 7
    ((command, *numbers),) = seen
    assert numbers == [3, 2] and command[-4:] == ["train", "my.config", "++x", "--processes"]
    done = subprocess.run([*command[:-4], "--version"], capture_output=True, text=True, timeout=LONG)
    assert done.stdout.startswith("returnn_tf ") and done.returncode == 0


def test_launched_processes_launch_no_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in environments([11, 12], "s", {})[1].items():
        monkeypatch.setenv(name, value)
    assert main(["launch", "--processes", "2", "my.config"]) == 2
    assert "launch starts all processes itself, but this one is rank 1 of 2 already" in capsys.readouterr().err
