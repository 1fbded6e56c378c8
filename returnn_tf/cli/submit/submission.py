"""Reads the description of a job from configs and options, and submits its script to the scheduler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.cli.submit.description import Description
from returnn_tf.cli.submit.script import Training
from returnn_tf.config import Config
from returnn_tf.config.errors import ClusterError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.distributed import AUTO, HOROVOD
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.distributed.engines import has_horovod
from returnn_tf.engine.distributed.options import is_distributed, options_of

_COMMANDS = {"slurm": ("sbatch", "--parsable"), "sge": ("qsub", "-terse")}
_SECONDS = 120  # a scheduler that takes longer to answer is assumed to hang


def read_job(
    paths: Sequence[str], overrides: Sequence[str], options: dict[str, Any]
) -> tuple[Description, list[Training]]:
    """Return the description, from ``submit`` of the configs and the options, and what each config trains.

    :param paths: config files, one per job
    :param overrides: ``++key value``
    :param options: by name; they take precedence over those of the config
    :raises ConfigError: something is wrong with a config or an option
    """
    described: dict[str, Any] = {}
    trainings: list[Training] = []
    engines: list[str] = []
    for path in paths:
        config = Config.from_files([path], parse_arguments(list(overrides)).overrides)
        own = TaskSettings(config).submit or {}
        if trainings and own != described:
            raise ClusterError(
                "%s differs from that of %s, but the jobs of an array share one description. Submit them separately."
                % (TaskSettings(config).describe_source("submit"), paths[0])
            )
        described = own
        code = TrainingSettings(config).requeue_exit_code or 0
        trainings.append(Training(path, CheckpointSettings(config).model, code, is_distributed(config)))
        engines.append(options_of(config).engine)
    if "env" in options and isinstance(described.get("env"), dict):
        options = {**options, "env": {**described["env"], **options["env"]}}
    where = "submit" if not options else "submit, with the options"
    job = Description.from_dict({**described, **options}, where)
    if job.tasks > 1 and len({(training.is_distributed, engine) for training, engine in zip(trainings, engines)}) > 1:
        raise ClusterError(
            "the configs differ in what they say on several processes (distributed, use_horovod), but the jobs of an "
            "array are started alike. Submit them separately."
        )
    return job.with_launcher(engines[0] == HOROVOD or (engines[0] == AUTO and has_horovod())), trainings


def submit(job: Description, script: str) -> str:
    """Submit the script to the scheduler and return the id of the job.

    :raises ConfigError: the scheduler is not installed here, hangs, or refuses the job
    """
    command = _COMMANDS[job.scheduler]
    if shutil.which(command[0]) is None:
        raise ClusterError(
            "%s is not installed here. Submit on a machine of the cluster, or print the script: --dry-run" % command[0]
        )
    try:
        os.makedirs(log_dir(job), exist_ok=True)
    except OSError as exc:
        raise ClusterError("log_dir %r can't be created: %s" % (log_dir(job), exc.strerror)) from None
    try:
        done = subprocess.run(
            command, input=script, cwd=job.workdir or None, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(
            "%s has not answered within %g seconds, so the job may be submitted or not. Look at the queue before you "
            "try again." % (command[0], _SECONDS)
        ) from None
    if done.returncode:
        raise ClusterError("%s rejected the job: %s" % (command[0], (done.stderr or done.stdout).strip()))
    return done.stdout.strip().split(";")[0]


def log_dir(job: Description) -> str:
    """Return the folder for the output of the job."""
    return os.path.join(job.workdir, job.log_dir)
