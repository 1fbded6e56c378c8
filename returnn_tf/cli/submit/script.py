"""The job script in bash: directives for the scheduler, all values as quoted variables, then fixed code."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from returnn_tf.cli.submit import shell
from returnn_tf.cli.submit.description import HOROVODRUN, LAUNCH, MPIRUN, SRUN, Description
from returnn_tf.cli.submit.quantities import clock
from returnn_tf.engine.distributed.membership import HOSTS

_NAME_CHARS = re.compile(r"[^A-Za-z0-9_.+-]+")
#: seconds for which mpirun, after SIGTERM, lets its processes save before it kills them
_MPIRUN_PATIENCE = 60
#: environment variables passed to processes on other machines, if set
_PASSED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", HOSTS)
#: the machines of a job, as node1:4,node2:4
_HOSTS_OF_SGE = '$(awk \'{print $1 ":" $2}\' "$PE_HOSTFILE" | paste -sd,)'
#: launcher -> what asks a training for several processes; for srun the engine finds out whether Horovod can be used
_SEVERAL = {
    MPIRUN: ["++use_horovod", "True"],
    HOROVODRUN: ["++use_horovod", "True"],
    SRUN: ["++distributed", "{}"],
    LAUNCH: [],
}


def slurm_directives(job: Description, name: str, count: int) -> list[str]:
    """Return the directives for sbatch.

    :param count: jobs of the array; 1: no array
    """
    log = os.path.join(job.log_dir, name).replace("%", "%%") + (".%A_%a.log" if count > 1 else ".%j.log")
    options = [
        "--job-name=" + name,
        "--output=" + log,
        "--open-mode=append",
        "--time=" + clock(job.seconds),
        "--nodes=%d" % job.nodes,
        "--ntasks=%d" % job.tasks,
        "--ntasks-per-node=%d" % job.tasks_per_node,
        "--cpus-per-task=%d" % job.cpus,
        "--mem=%dM" % (job.megabytes * job.tasks_per_node),
        "--signal=B:USR1@%d" % job.lead_seconds,
        "--requeue" if job.requeue else "--no-requeue",
    ]
    if job.gpus:
        options.append("--gres=gpu:%d" % (job.gpus * job.tasks_per_node))
    if job.queue:
        options.append("--partition=" + job.queue)
    if count > 1:
        options.append("--array=0-%d" % (count - 1))
    return ["#SBATCH " + _quoted(option) for option in [*options, *job.extra]]


def sge_directives(job: Description, name: str, count: int) -> list[str]:
    """Return the directives for qsub. Slots are tasks, or the cores of a single task.

    :param count: jobs of the array; 1: no array
    """
    log = os.path.join(job.log_dir, name) + (".$JOB_ID.$TASK_ID.log" if count > 1 else ".$JOB_ID.log")
    slots = job.tasks if job.tasks > 1 else job.cpus
    megabytes = job.megabytes if job.tasks > 1 else -(-job.megabytes // slots)
    lines = [
        "-S /bin/bash",
        "-N " + name,
        "-cwd",  # otherwise relative paths are relative to the home folder
        "-j y",
        "-o " + _quoted(log),
        "-l h_rt=%s" % clock(job.seconds),
        "-l s_rt=%s" % clock(job.seconds - job.lead_seconds),
        "-l %s=%dM" % (job.sge_mem, megabytes),
        "-r " + ("y" if job.requeue else "n"),
        "-notify",
    ]
    if slots > 1:
        over_machines = job.tasks > 1 and job.launcher != LAUNCH
        lines.append("-pe %s %d" % (job.pe or ("mpi" if over_machines else "smp"), slots))
    if job.gpus:
        lines.append("-l %s=%d" % (job.sge_gpu, job.gpus))
    if job.queue:
        lines.append("-q " + job.queue)
    if count > 1:
        lines.append("-t 1-%d" % count)
    return ["#$ " + line for line in [*lines, *job.extra]]


DIRECTIVES: dict[str, Callable[[Description, str, int], list[str]]] = {
    "slurm": slurm_directives,
    "sge": sge_directives,
}


def _quoted(text: str) -> str:
    """Quote for the option parsers of the schedulers: neither is a shell, but both know double quotes."""
    if not any(char in text for char in " \t#\"'\\"):
        return text
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


@dataclass(frozen=True)
class Training:
    """One config of a job.

    :param config: path of the file
    :param model: its setting ``model``; empty: the job doesn't count starts without progress
    :param requeue_code: its setting ``requeue_exit_code``, or 0
    :param is_distributed: whether it asks for several processes by itself
    """

    config: str
    model: str = ""
    requeue_code: int = 0
    is_distributed: bool = False


def job_name(job: Description, trainings: Sequence[Training]) -> str:
    """Return the given name, else that of the first config file."""
    if job.name:
        return job.name
    stem = os.path.splitext(os.path.basename(trainings[0].config))[0]
    name = _NAME_CHARS.sub("_", stem)
    return name if name[:1].isalpha() else "job_" + name


def job_script(job: Description, trainings: Sequence[Training], arguments: Sequence[str] = ()) -> str:
    """Return the text of the script.

    :param trainings: with several: one job of an array for each
    :param arguments: ``++key value`` for all of them
    """
    name = job_name(job, trainings)
    if job.tasks > 1 and not trainings[0].is_distributed:
        arguments = [*arguments, *_SEVERAL[job.launcher]]
    parts = [
        ["#!/bin/bash", *DIRECTIVES[job.scheduler](job, name, len(trainings))],
        ["# Written by returnn-tf submit. Do not run it by hand.", "set -m"],
        [shell.IDENTITY[job.scheduler] + shell.COMMON + shell.TRAPS[job.scheduler].rstrip()],
        _values(job, name, trainings, arguments),
        _environment(job),
        [shell.COUNT_STARTS.rstrip()],
        _command(job),
        [shell.RUN.rstrip()],
        [(shell.GO_ON % shell.REQUEUE[job.scheduler]).rstrip()] if job.requeue else [],
        ['exit "$code"'],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _values(job: Description, name: str, trainings: Sequence[Training], arguments: Sequence[str]) -> list[str]:
    def listed(values: Sequence[object]) -> str:
        return "(%s)" % " ".join(shlex.quote(str(value)) for value in values)

    return [
        "name=%s" % name,
        "log_dir=%s" % shlex.quote(job.log_dir),
        "max_starts=%d" % job.max_starts,
        "launcher=%s" % (job.launcher if job.tasks > 1 else "none"),
        "program=%s" % listed(shlex.split(job.program)),
        "arguments=%s" % listed(arguments),
        "configs=%s" % listed([training.config for training in trainings]),
        "models=%s" % listed([training.model for training in trainings]),
        "requeue_codes=%s" % listed([training.requeue_code for training in trainings]),
        "config=${configs[$index]} model=${models[$index]} requeue_code=${requeue_codes[$index]}",
    ]


def _environment(job: Description) -> list[str]:
    lines = ["cd %s || exit 1" % shlex.quote(job.workdir or os.getcwd())]
    if job.modules:
        lines.append("type module > /dev/null 2>&1 || . /etc/profile")
        lines += ["module load %s || exit 1" % shlex.quote(module) for module in job.modules]
    if job.venv:
        lines.append(". %s || exit 1" % shlex.quote(os.path.join(job.venv, "bin", "activate")))
    lines.append("export OMP_NUM_THREADS=%d TF_NUM_INTRAOP_THREADS=%d" % (job.cpus, job.cpus))
    lines += ["export %s=%s" % (name, shlex.quote(value)) for name, value in job.env.items()]
    return [*lines, *job.setup]


def _command(job: Description) -> list[str]:
    launched = job.tasks > 1 and job.launcher == LAUNCH
    start = " launch --processes %d%s" % (job.tasks, _further(job)) if launched else ""
    lines = ['training=("${program[@]}"%s "$config" "${arguments[@]}")' % start]
    if job.tasks == 1:
        return [*lines, shell.STOP_BY_CHILD.rstrip(), 'command=("${training[@]}")']
    return [*lines, *_LAUNCHERS[job.launcher](job)]


def _mpirun(job: Description) -> list[str]:
    hosts = ["export %s=%s" % (HOSTS, _HOSTS_OF_SGE)] if job.scheduler == "sge" else []
    options = ["-np", str(job.tasks), "-bind-to", "none", "-map-by", "slot"]
    options += ["-mca", "odls_base_sigkill_timeout", str(_MPIRUN_PATIENCE), *job.launcher_args]
    return [
        shell.STOP_BY_MPIRUN.rstrip(),
        *hosts,
        "command=(mpirun %s)" % " ".join(shlex.quote(option) for option in options),
        "for variable in %s; do" % " ".join([*_PASSED, *job.env]),
        '  [ -z "${!variable+x}" ] || command+=(-x "$variable")',
        "done",
        'command+=("${training[@]}")',
    ]


def _horovodrun(job: Description) -> list[str]:
    if job.nodes == 1:
        hosts = "localhost:%d" % job.tasks
    elif job.scheduler == "slurm":
        hosts = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/$/:%d/" | paste -sd,)' % job.tasks_per_node
    else:
        hosts = _HOSTS_OF_SGE
    return [
        shell.STOP_BY_RANK_0.rstrip(),
        'command=(horovodrun -np %d -H "%s"%s)' % (job.tasks, hosts, _further(job)),
        'command+=(bash -c %s "$rank_0" "${training[@]}")' % shlex.quote(shell.NOTE_RANK_0),
    ]


def _srun(job: Description) -> list[str]:
    options = "--ntasks=%d --cpus-per-task=%d --kill-on-bad-exit=1" % (job.tasks, job.cpus)
    return [shell.STOP_BY_CHILD.rstrip(), 'command=(srun %s%s "${training[@]}")' % (options, _further(job))]


def _launch(job: Description) -> list[str]:
    check = [shell.ONE_MACHINE.rstrip()] if job.scheduler == "sge" else []
    return [*check, shell.STOP_BY_CHILD.rstrip(), 'command=("${training[@]}")']


def _further(job: Description) -> str:
    return "".join(" " + shlex.quote(argument) for argument in job.launcher_args)


_LAUNCHERS: dict[str, Callable[[Description], list[str]]] = {
    MPIRUN: _mpirun,
    HOROVODRUN: _horovodrun,
    SRUN: _srun,
    LAUNCH: _launch,
}
