"""Number of processes which the launcher or the scheduler started, according to the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Optional

from returnn_tf.config import ConfigError

#: Set for each process by its launcher, so the number is exact. The first one that is set counts.
_LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_ADVICE = (
    "Start that many processes, e.g. mpirun -np %d returnn-tf my.config, or request as many as you start. If this is "
    "intended: horovod_check_world_size = False"
)


def check_world_size(size: int, environ: Optional[Mapping[str, str]] = None) -> None:
    """Refuse a world of another size than requested: each process might train on its own.

    :param size: of the world, according to Horovod
    :raises ConfigError: it differs from that of launcher or scheduler
    """
    environ = os.environ if environ is None else environ
    launcher, number = started_by(environ)
    if launcher and number != size:
        raise ConfigError(_differs(size, "%s = %d" % (launcher, number), number) + _hint(launcher))
    tasks = _number(environ, "SLURM_NTASKS")
    # a single task may start several processes itself
    if tasks is not None and tasks > 1 and tasks != size:
        raise ConfigError(_differs(size, "Slurm's SLURM_NTASKS = %d" % tasks, tasks))
    slots = _number(environ, "NSLOTS")
    # slots may also be cores for threads: check only if no other process was started
    if slots is not None and slots > 1 and size == 1 and _for_processes(environ):
        raise ConfigError(_differs(size, "Grid Engine's NSLOTS = %d" % slots, slots))


def started_by(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the variable of the launcher and the number of processes in it; ("", 1) without a launcher."""
    for name in _LAUNCHERS:
        number = _number(environ, name)
        if number is not None:
            return name, number
    return "", 1


def _for_processes(environ: Mapping[str, str]) -> bool:
    """Return whether the Grid Engine environment is for several processes, by its name or number of hosts."""
    if any(word in environ.get("PE", "").lower() for word in ("mpi", "horovod", "hvd")):
        return True
    return (_number(environ, "NHOSTS") or 1) > 1


def _differs(size: int, what: str, wanted: int) -> str:
    return "Horovod sees %d process%s, but %s. %s" % (
        size,
        "" if size == 1 else "es",
        what,
        _ADVICE % wanted,
    )


def _hint(launcher: str) -> str:
    if launcher.startswith(("OMPI", "PMI", "SLURM")):
        return ". Perhaps this Horovod was built without that MPI: see horovodrun --check-build"
    return ""


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name, "")
    return int(text) if text.isdigit() and int(text) > 0 else None
