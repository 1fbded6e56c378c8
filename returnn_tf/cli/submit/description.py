"""The resources of a job, in terms that mean the same for every scheduler. Each option is declared once, here."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional, Union

from returnn_tf.cli.submit.quantities import megabytes_of, seconds_of
from returnn_tf.config.errors import ClusterError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import at_least, from_options, option

SCHEDULERS = ("slurm", "sge")
AUTO, MPIRUN, HOROVODRUN, SRUN, LAUNCH = "auto", "mpirun", "horovodrun", "srun", "launch"
LAUNCHERS = (AUTO, MPIRUN, HOROVODRUN, SRUN, LAUNCH)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*$")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_LEAST_RUN = 60  # seconds; a job with less time between start and signal is pointless


def _is_name(value: str) -> Optional[str]:
    return "must be letters, digits and _.+- only" if value and not _NAME.match(value) else None


EnvOption = Annotated[dict[str, str], Written(dict[str, Union[str, int, float]])]


@dataclass(frozen=True)
class Description:
    """The options; in a config: ``submit = {"time": "24:00:00", "tasks": 4, "gpus": 1, ...}``."""

    scheduler: str = option("slurm", help="scheduler for which the script is written", choices=SCHEDULERS)
    name: str = option("", help="name of the job; default: that of the config file", check=_is_name)
    time: str = option("24:00:00", help="wall time limit of the job: 24:00:00, 36h, 90m")
    mem: str = option("8G", help="memory of each task: 500M, 16G")
    tasks: int = option(1, help="processes that train together", check=at_least(1))
    nodes: int = option(
        1,
        help="machines over which the tasks are spread evenly (SGE: by the parallel environment)",
        check=at_least(1),
    )
    cpus: int = option(1, help="CPU cores of each task", check=at_least(1))
    gpus: int = option(0, help="GPUs of each task", check=at_least(0))
    queue: str = option("", help="partition (Slurm) or queue (SGE); default: that of the cluster")
    launcher: str = option(
        AUTO,
        help="what starts several tasks: mpirun and horovodrun for Horovod; srun, and launch (returnn-tf launch: one "
        "machine) for TensorFlow's own collectives; auto: mpirun if Horovod is installed, else srun (SGE: launch)",
        choices=LAUNCHERS,
    )
    launcher_args: tuple[str, ...] = option((), help="further arguments for mpirun, horovodrun, srun or launch")
    requeue: bool = option(True, help="resume in a new allocation after preemption or at the wall time limit")
    lead: str = option("180s", help="how long before the wall time limit the training is signalled to save and stop")
    max_starts: int = option(3, help="starts without progress before the job gives up; 0: no limit", check=at_least(0))
    program: str = option("returnn-tf", help="command that runs returnn-tf, e.g. python3 -m returnn_tf")
    venv: str = option("", help="folder of a virtual environment to activate")
    modules: tuple[str, ...] = option((), help="environment modules to load, e.g. cuda/12.3")
    env: EnvOption = option({}, help="environment variables: NAME=VALUE")
    setup: tuple[str, ...] = option((), help="lines of shell code to run before the training")
    workdir: str = option("", help="folder to run in; default: the current one")
    log_dir: str = option("log", help="folder for the output of the job; created if missing")
    pe: str = option(
        "", help="SGE: parallel environment; default: mpi for several tasks by mpirun or horovodrun, else smp"
    )
    sge_mem: str = option("mem_free", help="SGE: name of the resource for memory per slot")
    sge_gpu: str = option("gpu", help="SGE: name of the resource for GPUs per slot")
    extra: tuple[str, ...] = option((), help="further options of sbatch or qsub, e.g. --constraint=a100")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> Description:
        """Check and convert the options.

        :param where: the place, for messages
        :raises ConfigError: naming the option
        """
        description = from_options(cls, values, where=where)
        description = dataclasses.replace(
            description,
            env={name: str(value) for name, value in description.env.items()},
            launcher_args=tuple(description.launcher_args),
            modules=tuple(description.modules),
            setup=tuple(description.setup),
            extra=tuple(description.extra),
        )
        description._check(where)
        return description

    def _check(self, where: str) -> None:
        seconds_of("%s['time']" % where, self.time)
        seconds_of("%s['lead']" % where, self.lead)
        if self.tasks % self.nodes:
            raise ClusterError(
                "%s: %d tasks can't be spread evenly over %d nodes; take a multiple" % (where, self.tasks, self.nodes)
            )
        if self.scheduler == "sge" and self.launcher == SRUN and self.tasks > 1:
            raise ClusterError("%s['launcher']: srun is part of Slurm; use 'mpirun' or 'launch' with SGE" % where)
        if self.launcher == LAUNCH and self.nodes > 1:
            raise ClusterError(
                "%s['launcher']: launch starts the processes of one machine, but nodes is %d; use 'srun' or 'mpirun'"
                % (where, self.nodes)
            )
        path = os.path.join(self.workdir or os.getcwd(), self.log_dir)
        if self.scheduler == "sge" and any(char in path for char in "$:,"):
            raise ClusterError("%s: $ : , are special in paths of Grid Engine; rename a folder of %s" % (where, path))
        if self.seconds < self.lead_seconds + _LEAST_RUN:
            raise ClusterError(
                "%s: the time %s is too short for a signal %s before its end" % (where, self.time, self.lead)
            )
        for name in self.env:
            if not _VARIABLE.match(name):
                raise ClusterError("%s['env']: %r is not a valid variable name" % (where, name))
        megabytes_of("%s['mem']" % where, self.mem)
        for key, value in self._texts():
            if "\n" in value or "\0" in value:
                raise ClusterError("%s[%r]: line breaks are not allowed, got %r" % (where, key, value))

    def _texts(self) -> Any:
        for key in ("queue", "venv", "workdir", "log_dir", "pe", "sge_mem", "sge_gpu", "program"):
            yield key, getattr(self, key)
        for key in ("extra", "modules", "launcher_args"):
            for value in getattr(self, key):
                yield key, value

    def with_launcher(self, has_horovod: bool) -> Description:
        """Return the description with the launcher that ``auto`` stands for.

        :param has_horovod: whether the training is to use Horovod
        :raises ConfigError: there is none
        """
        if self.launcher != AUTO or self.tasks == 1:
            return self
        if self.scheduler == "sge" and not has_horovod and self.nodes > 1:
            raise ClusterError(
                "without Horovod nothing but mpirun starts processes on %d machines of Grid Engine: --launcher mpirun. "
                "On one machine: --nodes 1" % self.nodes
            )
        without = LAUNCH if self.scheduler == "sge" else SRUN
        return dataclasses.replace(self, launcher=MPIRUN if has_horovod else without)

    @property
    def seconds(self) -> int:
        """Return the wall time in seconds."""
        return seconds_of("time", self.time)

    @property
    def lead_seconds(self) -> int:
        """Return the seconds from the signal to the end of the wall time."""
        return seconds_of("lead", self.lead)

    @property
    def megabytes(self) -> int:
        """Return the memory of a task in megabytes."""
        return megabytes_of("mem", self.mem)

    @property
    def tasks_per_node(self) -> int:
        """Return the number of tasks on each machine."""
        return self.tasks // self.nodes
