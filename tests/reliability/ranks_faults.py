"""Faults of runs of several processes, as data; and such runs, whose ranks are forked from a warm process.

A fault is something that one rank, the victim, does at a moment of its run, or has otherwise than the others. All ranks
have the variable ``FAULT``, which the config reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.cli.launch.processes import environments, held_port
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from tests.reliability import toy
from tests.reliability.faults import STAMP

#: Seconds in which all ranks have to end, and what is given to a machine that is busy with other things before a test
#: does not wait any longer.
LIMIT, GIVEN = 60.0, 180.0
#: Seconds without a sign of a rank until the others end, as set for these runs; 40 by default.
PATIENCE = 20
_START = 8  # seconds for a rank that does not come; the others need some on a busy machine

CONFIG = """
import json
import os
import pathlib
import numpy
from returnn_tf.engine.distributed import rendezvous
from tests.reliability import faults

FAULT = json.loads(os.environ.get("FAULT", "{}"))

class Corpus:
    data_types = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}

    def __init__(self, size, fails_at=None, frames=10, label=0, nan_at=None):
        self.size, self.fails_at, self.frames, self.label, self.nan_at = size, fails_at, frames, label, nan_at

    def __len__(self):
        return self.size

    def get_seq_len(self, index):
        return self.frames

    def __getitem__(self, index):
        if self.fails_at is not None and index >= self.fails_at:
            pathlib.Path(faults.STAMP).touch()
            raise ValueError("sequence %%d is broken" %% index)
        data = numpy.full([self.frames, 9], 0.1 * (index %% 7), "float32")
        if self.nan_at is not None and index >= self.nan_at:
            data[:] = float("nan")
        return {"data": data, "classes": numpy.full([self.frames], self.label, "int32")}

def corpus(size, **given):
    return {"class": "MapDatasetWrapper", "map_dataset": Corpus(size, **given)}

train = corpus(%(train)d + FAULT.get("more", 0), **FAULT.get("train", {}))
dev = corpus(%(dev)d, **FAULT.get("dev", {}))
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
network["output"].update(FAULT.get("layer", {}))
max_seqs = 1
batch_size = 1000
optimizer = {"class": "adam"}
learning_rate = 0.001
model = "net/toy"
num_epochs = 1000
save_every_steps = 3
device = "cpu"
use_horovod = %(horovod)r
distributed = {"reduce": %(reduce)r, "timeout": %(patience)d, "start_timeout": FAULT.get("start_timeout", 100)}
tf_log_dir = None
tf_session_opts = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
locals().update(FAULT.get("settings", {}))
if "version" in FAULT:
    rendezvous.__version__ = FAULT["version"]

def startup_callback(config):
    faults.install(FAULT.get("at"))
"""

_SEQUENCES = 8  # of each rank, in training; half as many in the evaluation
_ENGINES = ("tensorflow", "horovod")
#: Of a rank: the first one, the last one, or one of them that depends on the number of ranks.
FIRST, LAST, ANY = "first", "last", "any"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and what comes of it.

    :param victim: what the variable ``FAULT`` has for the victim; None: it is not started
    :param says: what each of the others says, a pattern, in words with the number of the victim
    :param victim_says: what the victim says; None: nothing, for it can't
    :param code: exit codes that the others may have
    :param victim_code: those of the victim
    :param where: which rank is the victim
    :param everyone: what ``FAULT`` has for all
    :param environ: further variables of the victim
    :param port_in_use: another program has the port of the victim
    :param engines: those which have this fault
    """

    victim: Optional[dict[str, Any]]
    says: str
    victim_says: Optional[str]
    code: tuple[int, ...] = (1,)
    victim_code: tuple[int, ...] = (1,)
    where: str = ANY
    everyone: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    port_in_use: bool = False
    engines: Sequence[str] = _ENGINES

    def sharded(self) -> Fault:
        """Return the same fault of ranks that write shares of checkpoints."""
        return dataclasses.replace(self, everyone={"settings": {"save_sharded": True}})

    @property
    def is_stop(self) -> bool:
        """Return whether the victim is stopped by SIGSTOP, so that it can't end."""
        return self.says == _SILENT

    def rank(self, number: int) -> int:
        """Return the victim among so many ranks."""
        first = number % 2 == 1 if self.where == ANY else self.where == FIRST
        return 0 if first else number - 1


_MOMENTS: dict[str, tuple[str, int]] = {
    "start": ("train", 1),
    "tracing": ("trace", 1),
    "first_step": ("step", 1),
    "step": ("step", 5),
    "evaluation": ("batch", 2),
    "saving": ("saving", 1),
    "end_of_epoch": ("trained", 1),
}
_LOST, _SILENT, _STUCK = "has ended or was killed", "has been silent for", "has made no progress for"
_MISSING = {"start_timeout": _START}
_NOT_REACHED = "at .* has (not been reached|ended)"
_NOT_STARTED = "ranks have not started within %d s" % _START


def _at(moment: str, action: str) -> dict[str, Any]:
    return {"at": [*_MOMENTS[moment], action]}


def _lost(moment: str, action: str, code: int) -> Fault:
    """Return the fault of a rank that is gone without a word."""
    return Fault(_at(moment, action), _SILENT if action == "SIGSTOP" else _LOST, None, victim_code=(code,))


def _terminated(moment: str, code: int = 128 + signal.SIGTERM, **settings: Any) -> Fault:
    """Return the fault of a rank that gets SIGTERM: all save and end."""
    says = "Stopped by SIGTERM"
    return Fault(_at(moment, "SIGTERM"), says, "SIGTERM: finishing", (code,), (code,), everyone={"settings": settings})


def _failing(said: str, **given: Any) -> Fault:
    """Return the fault of a rank that has an error, which all of them tell."""
    return Fault(given, said, said)


def _differs(about: str, what: str, **given: Any) -> Fault:
    """Return the fault of a rank that would train something else; within an epoch, it could not even resume.

    The ranks find that at the same time, or one ends because another has found it.
    """
    said = r"(?s)(differ in their %s|was saved in the middle of epoch).*%s" % (about, what)
    return Fault(given, said, said, (1, 2), (1, 2))


FAULTS: dict[str, Fault] = {
    **{"killed-" + moment: _lost(moment, "SIGKILL", -signal.SIGKILL) for moment in _MOMENTS},
    **{"stopped-" + moment: _lost(moment, "SIGSTOP", -signal.SIGKILL) for moment in _MOMENTS},
    **{"exited-" + moment: _lost(moment, "exit", 3) for moment in _MOMENTS},
    **{"terminated-" + moment: _terminated(moment) for moment in _MOMENTS if moment != "start"},
    "terminated-start": Fault(_at("start", "SIGTERM"), _LOST, "there is no training state", victim_code=(143,)),
    "terminated-requeued": _terminated("step", 99, requeue_exit_code=99),
    "hangs-step": Fault(_at("step", "hang"), _STUCK, _STUCK),
    "hangs-evaluation": Fault(_at("evaluation", "hang"), _STUCK, _STUCK),
    "data_fails-first_step": _failing("sequence .* is broken", train={"fails_at": 0}),
    "data_fails-step": _failing("sequence .* is broken", train={"fails_at": _SEQUENCES}),
    "data_fails-evaluation": _failing("sequence .* is broken", dev={"fails_at": 0}),
    "nan-first_step": _failing("not finite", train={"nan_at": 0}),
    "nan-step": _failing("not finite", train={"nan_at": _SEQUENCES}),
    "labels": _failing("'classes'", train={"label": 5}),
    "differs-sequences": _differs("data of 'train'", "sequences", more=-1),
    "differs-lengths": _differs("data of 'train'", "lengths", train={"frames": 11}),
    "differs-layer": _differs("network", "L2", layer={"L2": 0.1}),
    "differs-settings": _differs("settings", "batch_size", settings={"batch_size": 1001}),
    "differs-seed": _differs("settings", "random_seed", settings={"random_seed": 7}),
    "differs-version": _failing("(?s)differ in their versions.*0.0.1", version="0.0.1"),
    "full_disk-saving": dataclasses.replace(_failing("No space left on device", at=["write", 1, "full"]), where=FIRST),
    "full_disk-rename": dataclasses.replace(_failing("No space left on device", at=["rename", 4, "full"]), where=FIRST),
    "never_starts": Fault(None, _NOT_STARTED, None, everyone=_MISSING, where=LAST, engines=_ENGINES[:1]),
    "never_starts-first": Fault(None, _NOT_REACHED, None, everyone=_MISSING, where=FIRST, engines=_ENGINES[:1]),
    "port_in_use": Fault(
        {}, "port .* can't be opened", "port .* can't be opened", where=LAST, port_in_use=True, engines=_ENGINES[:1]
    ),
    "port_in_use-first": Fault(
        {}, _NOT_REACHED, "port .* can't be opened",
        where=FIRST, everyone=_MISSING, port_in_use=True, engines=_ENGINES[:1],
    ),
    "fewer_hosts": Fault(
        {}, _NOT_STARTED, "(is not a rank of|has local rank)", victim_code=(2,),
        where=LAST, everyone=_MISSING, environ={"RETURNN_TF_ADDRESSES": "127.0.0.1:12345"}, engines=_ENGINES[:1],
    ),
}  # fmt: skip


class Runs:
    """Runs of one training, one after the other: each goes on from what the one before has left.

    :param warm: forks the ranks
    :param folder: of the training
    :param engine: ``tensorflow`` or ``horovod``
    :param number: of ranks
    :param reduce: what they sum
    """

    def __init__(self, warm: toy.Warm, folder: pathlib.Path, engine: str, number: int, reduce: str) -> None:
        self._warm, self._folder, self._engine, self.number = warm, folder, engine, number
        folder.mkdir(parents=True)
        values = {"train": _SEQUENCES * number, "dev": _SEQUENCES // 2 * number, "reduce": reduce}
        self._config = CONFIG % {**values, "horovod": engine == "horovod", "patience": PATIENCE}

    def run(self, fault: Fault) -> float:
        """Run with a fault, until all ranks have ended as they should; return the seconds that this took.

        They count from the fault, or from the start if it is there from the start on. The run must begin with the
        newest of the checkpoints that are intact, and leave none that is not.
        """
        intact, broken = self._stored()
        before, victim = (intact[-1] if intact else None), fault.rank(self.number)
        (self._folder / "toy.config").write_text(self._config)
        stamp = self._folder / STAMP
        with contextlib.suppress(FileNotFoundError):
            stamp.unlink()
        with self._environments(fault, victim) as environs:
            started = time.time()
            pids = {
                rank: self._warm.start(self._folder, environ=environ, log=self._log(rank).name)
                for rank, environ in enumerate(environs)
                if fault.victim is not None or rank != victim
            }
            codes = self._ends(pids, victim if fault.is_stop else None)
        seconds = max(time.time() - (stamp.stat().st_mtime if stamp.exists() else started), 0.0)
        for rank, code in codes.items():
            expected = fault.victim_code if rank == victim else fault.code
            assert code in expected, "rank %d ended with %d, not %s\n%s" % (rank, code, expected, self.text())
            self._check_output(fault, rank, victim)
        chief = self._log(0).read_text("utf8", "replace") if self._log(0).exists() else ""
        loaded = re.findall(r"Loaded (\S+)", chief)
        must = before is not None and "processes train together" in chief  # else the fault may come before
        assert loaded == [before] or not (must or loaded), "loaded %s, not %s" % (loaded, before)
        intact, now_broken = self._stored()
        assert set(now_broken) <= set(broken) and (intact or not before), (intact, now_broken)
        return seconds

    def _ends(self, pids: Mapping[int, int], stopped: Optional[int]) -> dict[int, int]:
        """Return the exit codes; a rank that is stopped is killed when the others have ended."""
        end, codes = time.monotonic() + GIVEN, {}
        for rank in sorted(pids, key=lambda rank: rank == stopped):
            if rank == stopped:
                os.kill(pids[rank], signal.SIGKILL)
            try:
                codes[rank] = self._warm.wait(pids[rank], end - time.monotonic())
            except TimeoutError:
                raise AssertionError("rank %d has not ended\n%s" % (rank, self.text())) from None
        return codes

    def _check_output(self, fault: Fault, rank: int, victim: int) -> None:
        """Check that a rank tells the fault and, unless it has it itself or all save and end, names the victim."""
        text = self._log(rank).read_text("utf8", "replace")
        says = fault.victim_says if rank == victim else fault.says
        assert "Traceback" not in text, text
        if says is None or (rank not in (0, victim) and says.startswith("Stopped by")):
            return
        assert re.search(says, text), "rank %d does not say %r:\n%s" % (rank, says, text)
        if rank != victim and not says.startswith("Stopped by"):
            assert re.search(r"(?i)\branks? [\d, ]*\b%d\b" % victim, text), text

    def damage(self, how: str) -> str:
        """Remove the last file of data of the newest checkpoint, or half of it; return the name of the file."""
        path = max(self._folder.glob(self._stored()[0][-1] + ".data-*"))
        if how == "missing":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
        return path.name

    def _stored(self) -> tuple[list[str], list[str]]:
        """Return the checkpoints that are intact, and those that are not, in the order in which they were written."""
        model = str(self._folder / "net" / "toy")
        found = {(epoch, float("inf")): path for epoch, path in find_checkpoints(model).items()}
        found.update(find_step_checkpoints(model))
        names: tuple[list[str], list[str]] = [], []
        for _, path in sorted(found.items()):
            names[checkpoint.validate(path) is not None].append("net/" + pathlib.Path(path).name)
        return names

    def _log(self, rank: int) -> pathlib.Path:
        return self._folder / ("rank%d.txt" % rank)

    def text(self) -> str:
        """Return what all ranks have printed."""
        logs = sorted(self._folder.glob("rank*.txt"))
        return "\n".join("%s:\n%s" % (log.name, log.read_text("utf8", "replace")[-3000:]) for log in logs)

    @contextlib.contextmanager
    def _environments(self, fault: Fault, victim: int) -> Iterator[list[dict[str, str]]]:
        """Yield the variables of each rank."""
        for log in self._folder.glob("rank*.txt"):
            log.unlink()
        with contextlib.ExitStack() as stack:
            if self._engine == "horovod":
                environs = stack.enter_context(_of_horovod(self.number))
            else:
                ports = [stack.enter_context(held_port()) for _ in range(self.number)]
                environs = environments(ports, secrets.token_hex(), {})
                if fault.port_in_use:
                    stack.enter_context(socket.create_server(("", ports[victim])))
            for rank, environ in enumerate(environs):
                own = (fault.victim or {}) if rank == victim else {}
                environ.update(fault.environ if rank == victim else {}, FAULT=json.dumps({**fault.everyone, **own}))
            yield environs


@contextlib.contextmanager
def _of_horovod(number: int) -> Iterator[list[dict[str, str]]]:
    """Yield the variables that ``horovodrun --gloo`` sets; its server runs in this context."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    slots = get_host_assignments(parse_hosts("localhost:%d" % number), number)
    server.init(slots)
    common = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_HOSTNAME": "localhost",
    }
    try:
        yield [
            {
                **common,
                **{
                    "HOROVOD_%s%s" % (place.upper(), kind.upper()): str(getattr(slot, place + kind))
                    for place in ("", "local_", "cross_")
                    for kind in ("rank", "size")
                },
            }
            for slot in slots
        ]
    finally:
        server.stop()
        server._httpd.server_close()  # which it leaves to the garbage collector
