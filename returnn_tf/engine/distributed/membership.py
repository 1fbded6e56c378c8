"""Which process of a training this one is, and where the others are: read from the variables of what started it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.errors import ClusterError
from returnn_tf.engine.distributed.handshake import TOKEN_BYTES

#: Variables that ``returnn-tf launch`` sets for each of its processes.
RANK, LOCAL_RANK, LOCAL_SIZE, ADDRESSES = _OWN = (
    "RETURNN_TF_RANK",
    "RETURNN_TF_LOCAL_RANK",
    "RETURNN_TF_LOCAL_SIZE",
    "RETURNN_TF_ADDRESSES",
)
#: Set by ``returnn-tf launch``: a secret that its processes share.
SECRET = "RETURNN_TF_SECRET"
#: Set by ``returnn-tf launch``: where a process reports that it is done, see `report_done`; the least number of
#: processes with which it starts again after some are lost.
REPORT, LEAST = "RETURNN_TF_REPORT", "RETURNN_TF_MIN_PROCESSES"
#: Set by the user: the first of the ports of a host, where only the hosts are known.
PORT = "RETURNN_TF_PORT"
#: Set by the user, for MPI: the hosts in the order of the ranks, ``node1:4,node2:4``.
HOSTS = "RETURNN_TF_HOSTS"

_HERE = "127.0.0.1"
_LAST_PORT = (1 << 16) - 1
#: Ports where none is given, below those that Linux gives to connections. A job has a block of `_BLOCK` or more.
_FIRST_PORT, _PORTS, _BLOCK = 12000, 20000, 16
_STEPS_APART = 37  # blocks between steps of a job, which may run at the same time
_BRACKETS = re.compile(r"\[([^][]*)\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?$")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")
_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
#: Rank, size, local rank and local size by Open MPI, and by MPICH and Intel MPI.
_MPIS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True)
class Membership:
    """The place of this process among those that train together.

    :param rank: of this process, from 0
    :param size: number of processes
    :param local_rank: of this process among those on its host
    :param local_size: number of processes on its host
    :param addresses: ``host:port`` by rank, that of the leader first
    :param source: what names the addresses, for messages
    :param token: of the run: who doesn't know it is no rank
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    addresses: tuple[str, ...]
    source: str
    token: str


def find(environ: Mapping[str, str]) -> Optional[Membership]:
    """Return the membership that the variables state; None if there are none, or a scheduler started one process only.

    The first that are there count: those of ``returnn-tf launch``, ``TF_CONFIG``, those of an MPI, those of Slurm. An
    mpirun in a job of Slurm may start its daemons by srun, and the processes then have variables of both.

    :raises ConfigError: some are missing, or they contradict each other
    """
    if any(name in environ for name in _OWN):
        return _of_launcher(environ)
    if environ.get("TF_CONFIG"):
        return _of_tf_config(environ["TF_CONFIG"])
    for names in _MPIS:
        if all(name in environ for name in names):
            return _of_mpi(environ, *names)
    if "SLURM_STEP_NUM_TASKS" in environ:
        return _of_slurm(environ)
    return None


def report_to(pipe: int) -> str:
    """Return the value of `REPORT` for the end of a pipe, which is passed on to the process."""
    return "%d:%d" % (pipe, os.fstat(pipe).st_ino)


def report_done(environ: Mapping[str, str]) -> None:
    """Report to ``returnn-tf launch`` that this process is done, and ends with the exit code that it should."""
    pipe, _, inode = environ.get(REPORT, "").partition(":")
    # a child of the process has the variable without the pipe, whose number may be that of another file
    with contextlib.suppress(OSError, ValueError):
        if os.fstat(int(pipe)).st_ino == int(inode):
            os.write(int(pipe), b".")


def host_of(address: str) -> str:
    """Return the host of ``host:port``; of an address of IPv6, ``[::1]:80``, without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """Return the port of ``host:port``."""
    return int(address.rpartition(":")[2])


def _of_launcher(environ: Mapping[str, str]) -> Membership:
    missing = [name for name in _OWN if name not in environ]
    if missing:
        given = [name for name in _OWN if name in environ]
        raise ClusterError(
            "%s is set, but not %s. returnn-tf launch sets all of them: start the processes with it, or unset those "
            "that are left over" % (" and ".join(given), " and ".join(missing))
        )
    rank, local_rank, local_size = (_number(environ, name) for name in (RANK, LOCAL_RANK, LOCAL_SIZE))
    addresses = environ[ADDRESSES].split(",")
    place = "%s=%d" % (RANK, rank)
    return _member(rank, local_rank, local_size, addresses, ADDRESSES, place, environ.get(SECRET, ""))


def _of_tf_config(text: str) -> Optional[Membership]:
    """Read the variable of ``tf.distribute``: the chief, if there is one, comes before the workers."""
    try:
        content = json.loads(text)
        cluster = {str(kind): [str(address) for address in content["cluster"][kind]] for kind in content["cluster"]}
        kind, index = str(content["task"]["type"]), int(content["task"]["index"])
    except (ValueError, KeyError, TypeError):
        raise ClusterError(
            'TF_CONFIG must be like {"cluster": {"worker": ["a:2222", "b:2222"]}, '
            '"task": {"type": "worker", "index": 0}}, not %s' % text
        ) from None
    others = sorted(set(cluster) - {"chief", "worker"})
    if others:
        raise ClusterError("TF_CONFIG has tasks of type %s, but all train: use worker and chief" % " and ".join(others))
    if not 0 <= index < len(cluster.get(kind, [])):
        raise ClusterError("TF_CONFIG: this is to be %s %d, but the cluster has no such task" % (kind, index))
    chiefs = cluster.get("chief", [])
    addresses = chiefs + cluster.get("worker", [])
    if len(addresses) == 1:
        return None
    rank = index + (len(chiefs) if kind == "worker" else 0)
    own = [other for other, address in enumerate(addresses) if host_of(address) == host_of(addresses[rank])]
    return _member(rank, own.index(rank), len(own), addresses, "TF_CONFIG", "TF_CONFIG: %s %d" % (kind, index), "")


def _of_mpi(environ: Mapping[str, str], *names: str) -> Optional[Membership]:
    rank, size, local_rank, local_size = (_number(environ, name) for name in names)
    if size == 1:
        return None
    source, hosts = (names[1], [_HERE] * size) if local_size == size else _hosts_of_mpi(environ, size, local_size)
    # no step of Slurm: it would be that of the daemons, and mpirun's own host has none
    job = environ.get("SLURM_JOB_ID") or environ.get("JOB_ID") or ""
    run = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    addresses = _addresses(environ, hosts, job, zlib.crc32(run.encode("utf8")))
    return _member(rank, local_rank, local_size, addresses, source, "%s=%d" % (names[0], rank), job + " " + run)


def _hosts_of_mpi(environ: Mapping[str, str], size: int, local_size: int) -> tuple[str, list[str]]:
    """Return the variable that names the hosts, and the host of each rank; mpirun fills one host after the other."""
    if environ.get(HOSTS):
        entries = [entry.rpartition(":") for entry in environ[HOSTS].split(",")]
        return HOSTS, _filled([(host.strip("[]"), number) for host, _, number in entries], size, HOSTS)
    if environ.get("PE_HOSTFILE"):
        try:
            with open(environ["PE_HOSTFILE"], encoding="utf8") as file:
                rows = [line.split() for line in file if line.strip()]
        except OSError as exc:
            raise ClusterError("PE_HOSTFILE: %s: %s" % (environ["PE_HOSTFILE"], exc.strerror)) from None
        return "PE_HOSTFILE", _filled([(row[0], "".join(row[1:2])) for row in rows], size, "PE_HOSTFILE")
    nodes = expand_hosts(environ.get("SLURM_JOB_NODELIST", ""))
    if nodes and len(nodes) * local_size == size:
        return "SLURM_JOB_NODELIST", [node for node in nodes for _ in range(local_size)]
    raise ClusterError(
        "mpirun has started %d processes, %d of them on this host, and does not tell the other hosts. Name them in the "
        "order of the ranks: mpirun -x %s=node1:%d,node2:%d ..." % (size, local_size, HOSTS, local_size, local_size)
    )


def _filled(slots: Iterable[tuple[str, str]], size: int, source: str) -> list[str]:
    """Return the host of each rank, where each host has as many as it has slots."""
    hosts: list[str] = []
    for host, number in slots:
        if not host or not number.isdecimal():
            raise ClusterError(
                "%s: %r is no host with a number of processes" % (source, " ".join(filter(None, [host, number])))
            )
        hosts += [host] * int(number)
    if len(hosts) < size:
        raise ClusterError("%s has hosts for %d processes, but there are %d" % (source, len(hosts), size))
    return hosts[:size]


def _of_slurm(environ: Mapping[str, str]) -> Optional[Membership]:
    """Read the variables of a step that srun has started."""
    size = _number(environ, "SLURM_STEP_NUM_TASKS")
    if size == 1:
        return None
    missing = [name for name in _SLURM if name not in environ]
    if missing:
        raise ClusterError("SLURM_STEP_NUM_TASKS is %d, but %s is not set" % (size, " and ".join(missing)))
    rank, local_rank, node = (_number(environ, name) for name in _SLURM[:3])
    nodes, counts = expand_hosts(environ[_SLURM[3]]), tasks_per_node(environ[_SLURM[4]])
    if len(counts) != len(nodes) or sum(counts) != size:
        raise ClusterError(
            "SLURM_STEP_TASKS_PER_NODE = %s does not fit %d tasks on SLURM_STEP_NODELIST = %s, %d nodes"
            % (environ["SLURM_STEP_TASKS_PER_NODE"], size, environ["SLURM_STEP_NODELIST"], len(nodes))
        )
    distribution = re.split("[:,=]", environ.get("SLURM_DISTRIBUTION") or "block")[0]
    if distribution == "block" or len(nodes) == 1:
        places = [index for index, count in enumerate(counts) for _ in range(count)]
    elif distribution == "cyclic":
        places = [index for turn in range(max(counts)) for index, count in enumerate(counts) if turn < count]
    else:
        raise ClusterError(
            "SLURM_DISTRIBUTION = %s does not tell on which node each task is. Start them by srun --distribution=block"
            % distribution
        )
    own = [task for task, place in enumerate(places) if place == node]
    if own[local_rank : local_rank + 1] != [rank]:
        raise ClusterError(
            "SLURM_NODEID=%d and SLURM_LOCALID=%d are not the place of SLURM_PROCID=%d with the distribution %s of "
            "SLURM_STEP_TASKS_PER_NODE = %s. Start the tasks by srun --distribution=block"
            % (node, local_rank, rank, distribution, environ["SLURM_STEP_TASKS_PER_NODE"])
        )
    hosts = [nodes[place] if len(nodes) > 1 else _HERE for place in places]
    job, step, start = (environ.get("SLURM_" + name, "") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    addresses = _addresses(environ, hosts, job, int(step) if step.isdecimal() else 0)
    place, run = "SLURM_PROCID=%d" % rank, " ".join([job, step, start])
    return _member(rank, local_rank, len(own), addresses, "SLURM_STEP_NODELIST", place, run)


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list of Slurm: those of ``n[1-2,7],gpu`` are n1, n2, n7, gpu.

    :raises ConfigError: it is not such a list
    """
    hosts: list[str] = []
    for entry in re.split(r",(?![^[]*\])", text) if text else []:
        parts = _BRACKETS.split(entry)  # text, and what is in brackets, in turn
        if not entry or any("[" in part or "]" in part for part in parts):
            raise ClusterError("%r is not a list of hosts such as n[1-2,7],gpu" % text)
        choices = [_numbered(part, text) if index % 2 else [part] for index, part in enumerate(parts)]
        hosts += ["".join(words) for words in itertools.product(*choices)]
    return hosts


def _numbered(ranges: str, text: str) -> list[str]:
    """Return the numbers of ``001-003,7``, with as many digits as they are written with."""
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.match(part)
        if found is None:
            raise ClusterError("%r is not a list of hosts such as n[1-2,7],gpu" % text)
        first, last = found.group(1), found.group(2) or found.group(1)
        numbers += ["%0*d" % (len(first), number) for number in range(int(first), int(last) + 1)]
    return numbers


def tasks_per_node(text: str) -> list[int]:
    """Return the numbers of ``2(x3),1``: 2, 2, 2, 1.

    :raises ConfigError: it has another form
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.match(part)
        if found is None:
            raise ClusterError("%r is not a list of numbers of tasks such as 2(x3),1" % text)
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def _addresses(environ: Mapping[str, str], hosts: Sequence[str], job: str, step: int) -> list[str]:
    """Return an address for each rank, with the same ports on each host.

    Unless the user or Slurm gives ports, they follow from the job and the step, so that two jobs on a host rarely take
    the same. There are fewer ports than jobs: `rendezvous` reports those that are in use.

    :param hosts: by rank
    :param job: its number; "" if it is unknown
    :param step: number of the step within the job
    """
    most = max(hosts.count(host) for host in set(hosts))
    reserved = environ.get("SLURM_STEP_RESV_PORTS")  # as the numbers of a list of hosts: 12001-12004
    ports = [int(port) for port in _numbered(reserved, reserved)] if reserved else []
    if environ.get(PORT):
        first = _number(environ, PORT)
        if not 0 < first <= _LAST_PORT + 1 - most:
            raise ClusterError(
                "%s = %d: a host needs %d ports from there on, up to %d" % (PORT, first, most, _LAST_PORT)
            )
        ports = list(range(first, first + most))
    elif len(ports) < most:
        block = -(-most // _BLOCK) * _BLOCK
        index = (int(job) if job.isdecimal() else 0) + _STEPS_APART * step
        first = _FIRST_PORT + index % max(_PORTS // block, 1) * block
        ports = list(range(first, first + most))
    seen = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    named = ["[%s]" % host if ":" in host else host for host in hosts]
    return ["%s:%d" % (host, ports[index]) for host, index in zip(named, seen)]


def _member(
    rank: int, local_rank: int, local_size: int, addresses: Sequence[str], source: str, place: str, run: str
) -> Membership:
    """Return the membership of a process if what is known of it is consistent.

    :param source: what names the addresses, for messages
    :param place: what states the rank
    :param run: what the ranks of a run share, besides the addresses
    """
    for address in addresses:
        if not _is_address(address):
            raise ClusterError("%s: %r is not host:port, with a port from 1 to %d" % (source, address, _LAST_PORT))
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        raise ClusterError("%s names %s for several ranks; each needs a port of its own" % (source, ", ".join(twice)))
    if rank >= len(addresses):
        raise ClusterError(
            "%s is not a rank of %d processes, whose addresses are those of %s" % (place, len(addresses), source)
        )
    own = host_of(addresses[rank])
    here = [rank for rank, address in enumerate(addresses) if host_of(address) == own]
    if len(here) != local_size or here.index(rank) != local_rank:
        raise ClusterError(
            "%s has local rank %d of %d, but by %s it has local rank %d of %d on %s"
            % (place, local_rank, local_size, source, here.index(rank), len(here), own)
        )
    token = hashlib.sha256("\n".join([run, *addresses]).encode("utf8")).hexdigest()[: 2 * TOKEN_BYTES]
    return Membership(rank, len(addresses), local_rank, local_size, tuple(addresses), source, token)


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isascii() and port.isdecimal() and 0 < int(port) <= _LAST_PORT


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal()):
        raise ClusterError("%s must be a number from 0, not %r" % (name, text))
    return int(text)
