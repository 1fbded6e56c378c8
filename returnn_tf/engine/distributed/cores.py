"""The share that a process of a training has of the cores of its host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Optional

from returnn_tf.engine.distributed import membership


def share_of_cores(local_size: int, environ: Optional[Mapping[str, str]] = None) -> int:
    """Return the number of threads for each of the ``local_size`` processes of a host."""
    environ = os.environ if environ is None else environ
    if environ.get("SLURM_CPUS_PER_TASK", "").isdigit():
        cores = int(environ["SLURM_CPUS_PER_TASK"])
        if membership.RANK in environ:  # of launch: its processes share the cores of all tasks on this machine
            tasks, nodes = (environ.get(name, "") for name in ("SLURM_NTASKS", "SLURM_NNODES"))
            cores = cores * (int(tasks) // int(nodes) if tasks.isdigit() and nodes.isdigit() else 1) // local_size
        return max(cores, 1)
    there = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    if "OMPI_COMM_WORLD_SIZE" in environ and allowed * local_size <= there:
        return allowed  # mpirun has bound each process to its own cores
    return max(allowed // local_size, 1)
