"""The comment lines at the head of a job script that request resources from Slurm (``#SBATCH``) and SGE (``#$``)."""

from __future__ import annotations

import os
from typing import Callable

from returnn_tf.cli.submit.description import Description
from returnn_tf.cli.submit.quantities import clock


def slurm_directives(job: Description, name: str, count: int) -> list[str]:
    """Return the directives for sbatch.

    :param name: of the job
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

    :param name: of the job
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
        lines.append("-pe %s %d" % (job.pe or ("mpi" if job.tasks > 1 else "smp"), slots))
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
