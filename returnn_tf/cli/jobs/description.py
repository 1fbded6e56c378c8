"""What a job needs, in words that mean the same for every scheduler. Each option is declared once, here."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from returnn_tf.cli.jobs.quantities import megabytes_of, seconds_of
from returnn_tf.config import ConfigError, did_you_mean

SCHEDULERS = ("slurm", "sge")
LAUNCHERS = ("mpirun", "horovodrun", "srun")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*$")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_LEAST_RUN = 60  # seconds between start and signal without which a job makes no sense


def _option(default: Any, text: str, choices: Tuple[str, ...] = ()) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class Description:
    """The options; in a config: ``submit = {"time": "24:00:00", "tasks": 4, "gpus": 1, ...}``."""

    scheduler: str = _option("slurm", "which scheduler the script is for", SCHEDULERS)
    name: str = _option("", "name of the job; default: that of the config file")
    time: str = _option("24:00:00", "wall time after which the job is taken down: 24:00:00, 36h, 90m")
    mem: str = _option("8G", "memory of each task: 500M, 16G")
    tasks: int = _option(1, "processes which train together by Horovod; 1: no Horovod")
    nodes: int = _option(
        1, "machines over which the tasks are spread evenly (for SGE the parallel environment does it)"
    )
    cpus: int = _option(1, "CPU cores of each task")
    gpus: int = _option(0, "GPUs of each task")
    queue: str = _option("", "partition (Slurm) or queue (SGE); default: that of the cluster")
    launcher: str = _option("mpirun", "what starts several tasks", LAUNCHERS)
    launcher_args: Tuple[str, ...] = _option((), "further arguments for mpirun, horovodrun or srun")
    requeue: bool = _option(True, "go on by itself in a new allocation after preemption or at the end of the time")
    lead: str = _option("180s", "how long before the end of the time the training is told to save and stop")
    max_starts: int = _option(3, "starts at the same point of the training before the job gives up; 0: any number")
    program: str = _option("returnn-tf", "how returnn-tf is called, e.g. python3 -m returnn_tf")
    venv: str = _option("", "folder of a virtual environment to activate")
    modules: Tuple[str, ...] = _option((), "environment modules to load, e.g. cuda/12.3")
    env: Mapping[str, str] = dataclasses.field(
        default_factory=dict, metadata={"help": "environment variables: NAME=VALUE", "choices": ()}
    )
    setup: Tuple[str, ...] = _option((), "lines of shell code to run before the training")
    workdir: str = _option("", "folder to run in; default: the current one")
    log_dir: str = _option("log", "folder for what the job prints; made if it is missing")
    pe: str = _option("", "SGE: parallel environment; default: smp for one task with several cores, mpi for more tasks")
    sge_mem: str = _option("mem_free", "SGE: name of the resource for memory per slot")
    sge_gpu: str = _option("gpu", "SGE: name of the resource for GPUs per slot")
    extra: Tuple[str, ...] = _option((), "further options of sbatch or qsub, e.g. --constraint=a100")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> Description:
        """Checked and converted.

        :param where: the place, for messages
        :raises ConfigError: naming the option
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        given: Dict[str, Any] = {}
        for key, value in values.items():
            if key not in fields:
                raise ConfigError("%s: there is no option %r. %s" % (where, key, did_you_mean(key, fields)))
            given[key] = _converted("%s[%r]" % (where, key), value, fields[key])
        description = cls(**given)
        description._check(where)
        return description

    def _check(self, where: str) -> None:
        for key in ("tasks", "nodes", "cpus"):
            if getattr(self, key) < 1:
                raise ConfigError("%s[%r]: at least 1 is needed, got %d" % (where, key, getattr(self, key)))
        if self.gpus < 0 or self.max_starts < 0:
            raise ConfigError("%s: gpus and max_starts can't be negative" % where)
        if self.tasks % self.nodes:
            raise ConfigError(
                "%s: %d tasks can't be spread evenly over %d nodes; take a multiple" % (where, self.tasks, self.nodes)
            )
        if self.scheduler == "sge" and self.launcher == "srun" and self.tasks > 1:
            raise ConfigError("%s['launcher']: srun is a part of Slurm; SGE has 'mpirun' and 'horovodrun'" % where)
        path = os.path.join(self.workdir or os.getcwd(), self.log_dir)
        if self.scheduler == "sge" and any(char in path for char in "$:,"):
            raise ConfigError("%s: Grid Engine gives $ : , a meaning in paths; rename a folder of %s" % (where, path))
        if self.seconds < self.lead_seconds + _LEAST_RUN:
            raise ConfigError(
                "%s: of the time %s nothing is left if the signal comes %s before its end"
                % (where, self.time, self.lead)
            )
        if self.name and not _NAME.match(self.name):
            raise ConfigError("%s['name']: letters, digits and _.+- only, got %r" % (where, self.name))
        for name in self.env:
            if not _VARIABLE.match(name):
                raise ConfigError("%s['env']: %r can't be the name of a variable" % (where, name))
        megabytes_of("%s['mem']" % where, self.mem)
        for key, value in self._texts():
            if "\n" in value or "\0" in value:
                raise ConfigError("%s[%r]: a line break can't be a part of %r" % (where, key, value))

    def _texts(self) -> Any:
        for key in ("queue", "venv", "workdir", "log_dir", "pe", "sge_mem", "sge_gpu", "program"):
            yield key, getattr(self, key)
        for key in ("extra", "modules", "launcher_args"):
            for value in getattr(self, key):
                yield key, value

    @property
    def seconds(self) -> int:
        """Wall time."""
        return seconds_of("time", self.time)

    @property
    def lead_seconds(self) -> int:
        """From the signal to the end of the wall time."""
        return seconds_of("lead", self.lead)

    @property
    def megabytes(self) -> int:
        """Memory of a task."""
        return megabytes_of("mem", self.mem)

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each machine."""
        return self.tasks // self.nodes


def _converted(where: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    default, choices = field.default, field.metadata["choices"]
    if field.name == "env":
        if not isinstance(value, Mapping):
            raise ConfigError("%s: expected a dict of variables, got %r" % (where, value))
        return {str(key): str(text) for key, text in value.items()}
    if isinstance(default, tuple):
        if not isinstance(value, (list, tuple)):
            raise ConfigError("%s: expected a list of strings, got %r" % (where, value))
        return tuple(str(entry) for entry in value)
    if isinstance(default, (bool, int)):
        if type(value) is not type(default):
            raise ConfigError("%s: expected %s, got %r" % (where, type(default).__name__, value))
        return value
    if choices and value not in choices:
        raise ConfigError("%s: %r. %s" % (where, value, did_you_mean(value, choices)))
    if field.name in ("time", "lead"):
        seconds_of(where, value)
    return str(value)
