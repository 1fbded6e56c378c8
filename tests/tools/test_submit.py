"""returnn-tf submit: job scripts for Slurm and SGE from one description. Really submitted in tests/reliability."""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from returnn_tf.cli.main import main
from returnn_tf.cli.submit import submission
from returnn_tf.cli.submit.description import Description
from returnn_tf.cli.submit.quantities import clock, megabytes_of, seconds_of
from returnn_tf.cli.submit.script import Training, job_script
from returnn_tf.cli.submit.submission import read_job
from returnn_tf.config import ConfigError

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "submit.py"
GOLDENS = pathlib.Path(__file__).parent / "submit"

_NASTY = 'it\'s a "$HOME" `id` \\ #; é'
_ONE = {"workdir": "/work"}
_MANY = {
    "workdir": "/data/my runs",
    "tasks": 4,
    "nodes": 2,
    "cpus": 3,
    "gpus": 1,
    "mem": "16G",
    "time": "2-12:00:00",
    "lead": "5m",
    "queue": "long",
    "modules": ["cuda/12.3"],
    "venv": "/home/me/env",
    "env": {"HOROVOD_TIMELINE": "out/time line.json"},
    "setup": ["ulimit -c 0"],
    "extra": ["--account=asr"],
}
_TWO = [Training("a.config", "a/net"), Training("my b.config", "b/net", 99)]

CASES = {
    "slurm_one": (_ONE, [Training("a.config", "a/net")], []),
    "slurm_mpirun": ({**_MANY, "launcher": "mpirun"}, [Training("a.config", "a/net")], ["++num_epochs", "5"]),
    "slurm_horovodrun": ({**_MANY, "launcher": "horovodrun"}, [Training("a.config")], []),
    "slurm_srun": ({**_MANY, "launcher": "srun", "launcher_args": ["--mpi=pmix"]}, [Training("a.config")], []),
    "slurm_srun_distributed": (
        {**_ONE, "tasks": 2, "launcher": "srun"},
        [Training("a.config", "a/net", is_distributed=True)],
        ["++num_epochs", "5"],
    ),
    "slurm_launch": (
        {**_MANY, "nodes": 1, "launcher": "launch", "launcher_args": ["--min-processes", "2"]},
        [Training("a.config", "a/net")],
        [],
    ),
    "slurm_array": ({**_ONE, "requeue": False, "name": "two"}, _TWO, []),
    "sge_one": ({**_ONE, "scheduler": "sge", "cpus": 4}, [Training("a.config", "a/net")], []),
    "sge_mpirun": (
        {**_MANY, "scheduler": "sge", "extra": ["-P asr"], "launcher": "mpirun"},
        [Training("a.config", "a/net")],
        [],
    ),
    "sge_launch": (
        {**_ONE, "scheduler": "sge", "tasks": 4, "gpus": 1, "launcher": "launch"},
        [Training("a.config", "a/net")],
        ["++num_epochs", "5"],
    ),
    "sge_horovodrun": (
        {**_MANY, "scheduler": "sge", "extra": [], "launcher": "horovodrun"},
        [Training("a.config")],
        [],
    ),
    "sge_array": ({**_ONE, "scheduler": "sge"}, _TWO, []),
    "slurm_nasty": (
        {
            "workdir": _NASTY,
            "log_dir": _NASTY,
            "env": {"X": _NASTY},
            "launcher_args": [_NASTY],
            "tasks": 2,
            "launcher": "mpirun",
        },
        [Training(_NASTY, _NASTY)],
        ["++key", _NASTY],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scripts(name, update_goldens):
    options, trainings, arguments = CASES[name]
    script = job_script(Description.from_dict(options, "submit"), trainings, arguments)
    path = GOLDENS / (name + ".sh")
    if update_goldens:
        path.write_text(script, encoding="utf8")
    assert script == path.read_text(encoding="utf8")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_values_reach_the_training_as_they_are(tmp_path):
    """The lines of the script which hold values, run by a real shell."""
    options, trainings, arguments = CASES["slurm_nasty"]
    job = Description.from_dict({**options, "tasks": 1, "workdir": str(tmp_path), "requeue": False}, "submit")
    script = job_script(job, trainings, arguments)
    shown = script.replace('"${command[@]}" < /dev/null &', 'printf "%s\\0" "$X" "$model" "${command[@]}" &')
    shown = shown.replace("max_starts=3", "max_starts=0")
    done = subprocess.run(
        ["bash", "-c", shown], env={**os.environ, "SLURM_JOB_ID": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    values = done.stdout[done.stdout.index(_NASTY) :].split("\0")
    assert values[:-1] == [_NASTY, _NASTY, "returnn-tf", _NASTY, "++key", _NASTY]


def test_options_are_the_same_in_config_and_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a.config").write_text(
        "model = 'out/net'\nrequeue_exit_code = 99\nsubmit = {'time': '2h', 'tasks': 2, 'env': {'A': '1', 'B': '2'}}\n"
    )
    job, trainings = read_job(["a.config"], ["++model", "other/net"], {"tasks": 4, "env": {"B": "3"}})
    assert (job.time, job.tasks, job.env) == ("2h", 4, {"A": "1", "B": "3"})
    assert trainings == [Training("a.config", "other/net", 99)]


@pytest.mark.parametrize(
    "config, has_horovod, options, launcher",
    [
        ("", True, {"tasks": 2}, "mpirun"),
        ("", False, {"tasks": 2}, "srun"),
        ("", False, {"tasks": 2, "scheduler": "sge"}, "launch"),
        ("", True, {"tasks": 2, "scheduler": "sge"}, "mpirun"),
        ("", False, {"tasks": 2, "launcher": "horovodrun"}, "horovodrun"),
        ("use_horovod = True\n", False, {"tasks": 2}, "srun"),
        ("distributed = {'engine': 'tensorflow'}\n", True, {"tasks": 2}, "srun"),
        ("distributed = {'engine': 'horovod'}\n", False, {"tasks": 2}, "mpirun"),
        ("", False, {}, "auto"),
    ],
)
def test_launchers_for_the_engine(config, has_horovod, options, launcher, tmp_path, monkeypatch):
    """Horovod's where it is installed or the config asks for it, else those of TensorFlow's collectives."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submission, "has_horovod", lambda: has_horovod)
    pathlib.Path("a.config").write_text(config)
    job, trainings = read_job(["a.config"], [], options)
    assert job.launcher == launcher and trainings[0].is_distributed == bool(config)


def test_several_machines_of_grid_engine_need_an_mpi(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submission, "has_horovod", lambda: False)
    pathlib.Path("a.config").write_text("")
    with pytest.raises(
        ConfigError, match="nothing but mpirun starts processes on 2 machines of Grid Engine: --launcher mpirun"
    ):
        read_job(["a.config"], [], {"scheduler": "sge", "tasks": 4, "nodes": 2})


def test_an_array_is_started_in_one_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a").write_text("distributed = {}\n")
    pathlib.Path("b").write_text("")
    with pytest.raises(ConfigError, match="the configs differ in what they say on several processes"):
        read_job(["a", "b"], [], {"tasks": 2})
    assert len(read_job(["a", "b"], [], {})[1]) == 2


def test_dry_run_of_the_tool(tmp_path):
    (tmp_path / "a b.config").write_text("model = 'out/net'\n")
    command = [
        sys.executable,
        str(TOOL),
        "--dry-run",
        "--no-requeue",
        "--env",
        "A=x y",
        "a b.config",
        "++num_epochs",
        "3",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=a_b\n")
    assert "export A='x y'" in done.stdout and "arguments=(++num_epochs 3)" in done.stdout
    assert "#SBATCH --no-requeue" in done.stdout and "scontrol" not in done.stdout
    assert "cd %s ||" % shlex.quote(str(tmp_path)) in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["a b.config"]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"task": 2}, r"submit: unknown option 'task'. Did you mean 'tasks'\?"),
        ({"scheduler": "slrum"}, r"option 'scheduler' is 'slrum'. Did you mean 'slurm'\?"),
        ({"time": "one day"}, r"submit\['time'\]: expected a time such as '24:00:00'.*got 'one day'"),
        ({"time": 24}, "'time' must be a string, got 24"),
        ({"time": "2m"}, "the time 2m is too short for a signal 180s before its end"),
        ({"mem": "16"}, r"submit\['mem'\]: expected an amount of memory"),
        ({"tasks": 3, "nodes": 2}, "3 tasks can't be spread evenly over 2 nodes"),
        ({"tasks": 0}, r"'tasks' must be at least 1"),
        ({"tasks": "2"}, r"'tasks' must be a whole number, got '2'"),
        ({"requeue": 2}, "must be True or False"),
        ({"gpus": -1}, "'gpus' must be at least 0"),
        ({"tasks": 2, "scheduler": "sge", "launcher": "srun"}, "srun is part of Slurm"),
        ({"tasks": 4, "nodes": 2, "launcher": "launch"}, "launch starts the processes of one machine, but nodes is 2"),
        ({"name": "my job"}, r"'name' must be letters, digits"),
        ({"env": {"A B": "x"}}, "'A B' is not a valid variable name"),
        ({"env": ["A=1"]}, "'env' must be a dict"),
        ({"modules": "cuda"}, r"'modules' must be a list.*, got 'cuda'"),
        ({"log_dir": "a\n#SBATCH --uid=0"}, "line break"),
        (
            {"scheduler": "sge", "log_dir": "$HOME/log"},
            ". : , are special in paths of Grid Engine; rename a folder of .*HOME/log",
        ),
        ({"extra": ["--a\n#SBATCH -b"]}, "line break"),
    ],
)
def test_wrong_options(options, error):
    with pytest.raises(ConfigError, match=error):
        Description.from_dict(options, "submit")


def test_quantities():
    assert [seconds_of("t", text) for text in ("24:00:00", "12:30", "1-00:00:00", "36h", "90m", "300s", "2d")] == [
        86400,
        45000,
        86400,
        129600,
        5400,
        300,
        172800,
    ]
    assert clock(90061) == "25:01:01"
    assert [megabytes_of("m", text) for text in ("500M", "16G", "1T")] == [500, 16384, 1048576]


def test_jobs_of_an_array_are_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, time in (("a", "2h"), ("b", "3h")):
        pathlib.Path(name).write_text("submit = {'time': %r}\n" % time)
    with pytest.raises(ConfigError, match="differs from that of a, but the jobs of an array share one description"):
        read_job(["a", "b"], [], {})


def test_hanging_scheduler(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submission, "_SECONDS", 0.2)
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "one.config").write_text("task = 'train'\n")
    assert main(["submit", "one.config"]) == 2
    assert "sbatch has not answered within 0.2 seconds" in capsys.readouterr().err


def test_no_scheduler_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    pathlib.Path("a.config").write_text("")
    assert main(["submit", "--scheduler", "sge", "a.config"]) == 2
    assert "qsub is not installed here" in capsys.readouterr().err
    assert os.listdir(".") == ["a.config"]


@pytest.mark.parametrize(
    "args, message",
    [
        ([], "returnn-tf submit: the following arguments are required: CONFIG"),
        (["--gpus", "two", "a.config"], "argument --gpus: invalid int value: 'two'"),
        (["--env", "A", "a.config"], "--env: expected NAME=VALUE, got 'A'"),
        (["--dry-runs", "a.config"], "unrecognized arguments: --dry-runs"),
    ],
)
def test_wrong_arguments(args, message, capsys):
    assert main(["submit", *args]) == 2
    assert message in capsys.readouterr().err
