"""The world: the processes which train together. A world of one process costs nothing."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import ClusterDataError, DistributedDataError, DistributedError
from returnn_tf.config.settings.distributed import HOROVOD, TENSORFLOW, Distributed
from returnn_tf.engine.distributed import elastic, engines, horovod, rendezvous, tf_server
from returnn_tf.engine.distributed.collectives import Collectives
from returnn_tf.engine.distributed.cores import share_of_cores
from returnn_tf.engine.distributed.differences import difference
from returnn_tf.engine.distributed.engines import Choice
from returnn_tf.engine.distributed.heartbeat import Heartbeat
from returnn_tf.engine.distributed.horovod import HorovodCollectives
from returnn_tf.engine.distributed.membership import ADDRESSES, report_done
from returnn_tf.engine.distributed.options import options_of
from returnn_tf.engine.distributed.tf_collectives import TensorFlowCollectives
from returnn_tf.engine.distributed.watchdog import Watchdog
from returnn_tf.engine.support import devices
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf

_WATCHDOG_SECONDS = 10.0  # to find out which rank is lost
_ENVIRONMENT = "RETURNN_TF_WORLD"  # for child processes, which are not part of the world
#: Set for each process by its launcher, so the number is exact. The first one that is set counts.
_LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_SEES = {HOROVOD: "Horovod", TENSORFLOW: "TensorFlow's engine"}
_START = {HOROVOD: "mpirun -np %d returnn-tf", TENSORFLOW: "returnn-tf launch --processes %d"}
_ADVICE = (
    "Start that many processes, e.g. %s my.config, or request as many as you start. If this is intended: "
    "distributed = {'check_size': False}"
)


class World:
    """World of one process. All ranks must call all methods, in the same order, from the main thread."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    #: whether processes may leave and join during training
    elastic = False
    #: what connects the processes, for the log
    connection = ""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        #: the heartbeat of this process, for the watchdog
        self.heartbeat = Heartbeat()
        #: why another process failed, if this one ends because of it; empty otherwise
        self.failure = ""
        #: called before the process ends because of another one
        self.on_abort: list[Callable[[], None]] = []

    @property
    def is_chief(self) -> bool:
        """Return whether this process is the one which writes files."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """Return a name for messages: ``rank 1/4 on host``."""
        return "rank %d/%d on %s" % (self.rank, self.size, self.host)

    def any(self, flag: bool) -> bool:
        """Return, on all ranks, whether the flag is true on one of them."""
        return bool(flag)

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON-serialisable values of all ranks, by rank, on all ranks; floats are exact."""
        return [value]

    def gather_values(self, value: Any) -> list[Any]:
        """Return the values of all ranks like `gather`, for larger values of any type, e.g. arrays."""
        return [value]

    def hosts(self) -> list[str]:
        """Return the host of each rank; without communication."""
        return [self.host]

    def barrier(self, what: str) -> None:
        """Wait until all ranks have arrived.

        :param what: for the message if one of them never comes
        """

    def broadcast(self, variables: Any) -> None:
        """Set variables, in the same order on all ranks, to the values of the chief."""

    def leave(self) -> None:
        """Announce that this process ends cleanly, so that the others go on."""
        report_done(os.environ)

    def failed(self, message: str) -> None:
        """Report that this process ends because of an error, so that the others end too."""

    def explain(self, exc: BaseException) -> Optional[Exception]:
        """Return the error to raise if an operation failed because of another rank; None if it did not."""
        return None

    def committed(self) -> None:
        """Report a finished checkpoint; in elastic mode processes may join and leave here.

        :raises Exception: one for Horovod, which restarts training from the checkpoint
        """


class MultiProcessWorld(World):
    """World of several processes.

    :param collectives: of the engine that connects them
    :param remark: why it is not the engine that the config names; "" if it is
    """

    def __init__(self, collectives: Collectives, remark: str = "") -> None:
        super().__init__()
        self.collectives = collectives
        remarks = "; ".join(filter(None, [remark, collectives.remark]))
        self.connection = "connected by %s" % collectives.engine + (" (%s)" % remarks if remarks else "")
        self._hosts: list[str] = []
        self._watchdog: Optional[Watchdog] = None
        #: in elastic mode, during training
        self.elastic_state: Any = None
        self.refresh()

    def rendezvous(self, timeout: float) -> None:
        """Exchange host names and versions, and start the watchdog. This is the first TensorFlow operation.

        :param timeout: seconds without progress of a rank until all end
        :raises DataError: the versions differ
        """
        self._meet()
        if self.size > 1 and not self.elastic:
            self._watchdog = Watchdog(self, self.heartbeat, timeout)
            self._watchdog.on_abort = self.on_abort
            self._watchdog.begin()
            atexit.register(self.leave)

    def _meet(self) -> None:
        found = self.gather([self.host, rendezvous.versions()])
        self._hosts = [host for host, _ in found]
        fault = difference("versions", [versions for _, versions in found], self._hosts)
        if fault:
            raise ClusterDataError(fault)

    def leave(self) -> None:
        """Announce the clean end to the launcher, and to the watchdogs of the other ranks."""
        super().leave()
        if self._watchdog is not None:
            self._watchdog.leave()

    def failed(self, message: str) -> None:
        """Report the error to the watchdogs of the other ranks."""
        if self._watchdog is not None:
            self._watchdog.failed(message)

    def explain(self, exc: BaseException) -> Optional[Exception]:
        """Return the error for a lost rank, after giving the watchdog time to name it and end the process."""
        lost = self.collectives.lost_rank(exc)
        if not lost:
            return None
        if self.elastic:
            return elastic.lost_rank(exc)
        time.sleep(_WATCHDOG_SECONDS)
        return DistributedDataError("Another rank has ended, or the connection to it is broken: %s" % lost)

    @contextlib.contextmanager
    def collective(self, what: str) -> Iterator[None]:
        """Wait for the other ranks within this context; raise an error about a lost rank if there is one."""
        try:
            with self.heartbeat.collective(what):
                yield
        except (tf.errors.OpError, RuntimeError) as exc:
            lost = self.explain(exc)
            if lost is None:
                raise
            raise lost from exc

    def committed(self) -> None:
        """Check through Horovod whether hosts have joined or left."""
        if self.elastic_state is not None:
            self.elastic_state.check_host_updates()

    def rendezvous_again(self) -> None:
        """Get a new rank, in elastic mode, after processes have left or joined."""
        assert isinstance(self.collectives, HorovodCollectives)
        self.collectives.restart()
        self.refresh()
        log.label = "" if self.is_chief else self.name
        self.on_abort.clear()
        self._meet()
        if self.is_chief:
            log.warn("Continuing with %d processes on %s" % (self.size, ", ".join(sorted(set(self._hosts)))))

    @property
    def elastic(self) -> bool:  # type: ignore[override]
        """Return whether processes may leave and join during training."""
        return self.collectives.elastic

    def refresh(self) -> None:
        """Take rank and size from the engine; they change in elastic mode."""
        self.rank, self.size = self.collectives.rank, self.collectives.size
        self.local_rank, self.local_size = self.collectives.local_rank, self.collectives.local_size
        os.environ[_ENVIRONMENT] = json.dumps([self.rank, self.size, self.local_rank, self.local_size])

    def hosts(self) -> list[str]:
        """Return the host names of the last rendezvous, by rank."""
        return list(self._hosts)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on some rank, by an allreduce of one number."""
        if self.size == 1:
            return bool(flag)
        with self.collective("agreeing"):
            return float(self.collectives.sum(tf.constant(float(bool(flag))), "world.any")) > 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, sent as JSON."""
        if self.size == 1:
            return [value]
        with self.collective("gathering"):
            contents = self.collectives.gather(json.dumps(value).encode("ascii"), "world.gather")
        return [json.loads(content) for content in contents]

    def gather_values(self, value: Any) -> list[Any]:
        """Return the pickled values of all ranks; they come from trusted processes of the same run."""
        if self.size == 1:
            return [value]
        with self.collective("gathering results"):
            contents = self.collectives.gather(pickle.dumps(value, protocol=4), "world.gather_values")
        return [pickle.loads(content) for content in contents]

    def barrier(self, what: str) -> None:
        """Wait for all ranks in an allgather."""
        if self.size > 1:
            self.gather(what)

    def broadcast(self, variables: Any) -> None:
        """Send the values of the chief to all ranks."""
        if self.size == 1 or not variables:
            return
        with self.collective("sending parameters"):
            self.collectives.broadcast(variables)


_started: list[World] = []  # the world of this process; empty before `start`


def start(config: Config) -> World:
    """Join the other processes, if the config asks for several or ``returnn-tf launch`` has started this one.

    The command and the tasks call this once they have the config, and pass the world on. The first call chooses the
    devices and waits for the other processes. Later calls return the same.

    :return: the world; one of a single process if there are no others
    :raises ConfigError: the engine is missing, or the size of the world differs from that requested of the scheduler
    """
    if not engines.several_wanted(config, os.environ):
        _warn_of_others()
        return World()
    if not _started or not isinstance(_started[0], MultiProcessWorld):
        options = options_of(config)
        world = _connected(config, options, engines.choose(config, os.environ))
        if isinstance(world, MultiProcessWorld):
            world.rendezvous(options.timeout)
        _started[:] = [world]
    return _started[0]


def _connected(config: Config, options: Distributed, choice: Choice) -> World:
    """Return the world of the chosen engine, its size checked, and the device of this process chosen."""
    if choice.engine == HOROVOD:
        world = MultiProcessWorld(horovod.connect(options.timeout, choice.setting))
        # in elastic mode the number may have changed since this process was started
        if options.check_size and not world.elastic:
            check_world_size(world.size)
        _set_up_devices(config, world.local_rank, world.local_size)
        return world
    member = choice.member
    # launch may have started again with fewer processes than the scheduler knows of
    if options.check_size and not elastic.starts_again():
        check_world_size(1 if member is None else member.size, engine=TENSORFLOW)
    if member is None or member.size == 1:
        return World()
    rendezvous.meet(member, options.start_timeout)
    _set_up_devices(config, member.local_rank, member.local_size)
    tf_server.start(member.addresses, member.rank)
    return MultiProcessWorld(TensorFlowCollectives(member, options.communication), choice.remark)


def _set_up_devices(config: Config, local_rank: int, local_size: int) -> None:
    devices.set_up(config, local_rank, local_size, share_of_cores(local_size) if local_size > 1 else None)


def _warn_of_others() -> None:
    """Warn, once, of processes which were started together but are not connected."""
    launcher, number = started_by(os.environ)
    if number > 1 and not _started:
        log.warn(
            "%d processes were started together (%s), but the config does not connect them: each of them runs on its "
            "own. To connect them: distributed = {}" % (number, launcher)
        )
        _started.append(World())


def of_process() -> Optional[tuple[int, int, int, int]]:
    """Return rank, size, local rank and local size; None without a world.

    In a loading process they are those of its parent.
    """
    text = os.environ.get(_ENVIRONMENT)
    return tuple(json.loads(text)) if text else None


def check_world_size(size: int, environ: Optional[Mapping[str, str]] = None, *, engine: str = HOROVOD) -> None:
    """Refuse a world of another size than requested: each process might train on its own.

    :param size: of the world, according to the engine
    :raises ConfigError: it differs from that of launcher or scheduler
    """
    environ = os.environ if environ is None else environ
    launcher, number = started_by(environ)
    if launcher and number != size:
        raise DistributedError(_differs(engine, size, "%s = %d" % (launcher, number), number) + _hint(engine, launcher))
    tasks = _number(environ, "SLURM_NTASKS")
    # a single task may start several processes itself
    if tasks is not None and tasks > 1 and tasks != size:
        raise DistributedError(_differs(engine, size, "Slurm's SLURM_NTASKS = %d" % tasks, tasks))
    slots = _number(environ, "NSLOTS")
    # slots may also be cores for threads: check only if no other process was started
    if slots is not None and slots > 1 and size == 1 and _for_processes(environ):
        raise DistributedError(_differs(engine, size, "Grid Engine's NSLOTS = %d" % slots, slots))


def started_by(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the variable of the launcher and the number of processes in it; ("", 1) without a launcher.

    ``returnn-tf launch`` comes first: it may itself be the only process of a step of Slurm, such as an interactive one.
    """
    if ADDRESSES in environ:
        return ADDRESSES, environ[ADDRESSES].count(",") + 1
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


def _differs(engine: str, size: int, what: str, wanted: int) -> str:
    return "%s sees %d process%s, but %s. %s" % (
        _SEES[engine],
        size,
        "" if size == 1 else "es",
        what,
        _ADVICE % (_START[engine] % wanted),
    )


def _hint(engine: str, launcher: str) -> str:
    if engine == HOROVOD and launcher.startswith(("OMPI", "PMI", "SLURM")):
        return ". Perhaps this Horovod was built without that MPI: see horovodrun --check-build"
    return ""


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name, "")
    return int(text) if text.isdigit() and int(text) > 0 else None
