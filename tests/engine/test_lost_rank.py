"""Operations of all ranks that fail because one is lost: outside of a step, too, that is no bug of ours."""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Callable

import pytest
import tensorflow as tf

from returnn_tf.config import DataError
from returnn_tf.config.settings.distributed import RING
from returnn_tf.engine.distributed import horovod
from returnn_tf.engine.distributed.horovod import HorovodCollectives
from returnn_tf.engine.distributed.membership import Membership
from returnn_tf.engine.distributed.tf_collectives import TensorFlowCollectives
from returnn_tf.engine.distributed.world import MultiProcessWorld


def horovod_failing(error: Exception) -> MultiProcessWorld:
    """Return a world of Horovod whose operations fail."""
    fail = failing(error)
    fake = types.SimpleNamespace(allreduce=fail, allgather=fail, broadcast_variables=fail, Sum=None)
    for name, number in (("rank", 1), ("size", 2), ("local_rank", 1), ("local_size", 2)):
        setattr(fake, name, lambda number=number: number)
    return MultiProcessWorld(HorovodCollectives(fake))


def of_tensorflow(error: Exception) -> MultiProcessWorld:
    """Return a world of TensorFlow; its ops are made to fail elsewhere."""
    member = Membership(1, 2, 1, 2, ("127.0.0.1:7001", "127.0.0.1:7002"), "a test", "token")
    return MultiProcessWorld(TensorFlowCollectives(member, RING))


def failing(error: Exception) -> Callable[..., Any]:
    """Return a function that raises."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


WORLDS = {"horovod": horovod_failing, "tensorflow": of_tensorflow}
#: What an op of each engine says when the connection to another rank breaks, and what of it is told.
LOST: dict[str, tuple[Exception, str]] = {
    "horovod": (
        tf.errors.UnknownError(
            None, None, "HorovodAllreduce has failed: [gloo/transport/tcp/pair.cc] Connection closed by peer"
        ),
        "Connection closed by peer",
    ),
    "tensorflow": (
        tf.errors.UnavailableError(
            None,
            None,
            "Collective ops is aborted by: Connection reset by peer\nAdditional GRPC error information from remote "
            'target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:\n:{"created":"@1"}',
        ),
        ": Connection reset by peer$",
    ),
}


OPERATIONS: list[Callable[[MultiProcessWorld], Any]] = [
    lambda world: world.any(True),
    lambda world: world.gather(1),
    lambda world: world.gather_values(1),
    lambda world: world.barrier("the end"),
    lambda world: world.broadcast([tf.Variable(1.0)]),
]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long the process has waited for the watchdog to name the lost rank."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    monkeypatch.setenv("RETURNN_TF_WORLD", "")
    return found


@pytest.fixture(params=WORLDS)
def engine(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine."""
    return str(request.param)


def world_failing(engine: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> MultiProcessWorld:
    """Return a world of an engine whose operations fail."""
    for name in ("CollectiveReduceV2", "CollectiveGatherV2", "CollectiveBcastRecvV2"):
        monkeypatch.setattr(tf.raw_ops, name, failing(error))
    return WORLDS[engine](error)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_outside_of_a_step(
    operation: Callable[[MultiProcessWorld], Any], engine: str, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    error, words = LOST[engine]
    world = world_failing(engine, error, monkeypatch)
    with pytest.raises(DataError, match="Another rank has ended, or the connection to it is broken.*" + words):
        operation(world)
    assert waits == [10.0] and not world.heartbeat.waiting


def test_other_errors_pass(engine: str, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ops that are wrong by themselves."""
    mismatch = "Collective ops is aborted by: Shape mismatch in the collective instance 14."
    for error in (tf.errors.UnknownError, tf.errors.InvalidArgumentError):
        with pytest.raises(error):
            world_failing(engine, error(None, None, mismatch), monkeypatch).any(True)
    assert waits == []


@pytest.mark.parametrize("given, expected", [(None, "180"), ("7", "7")])
def test_gloo_waits_for_longer_than_the_watchdog(given: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has set another time."""
    seen: list[str] = []
    init = lambda: seen.append(os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"])  # noqa: E731
    fake = types.SimpleNamespace(init=init, **dict.fromkeys(("rank", "size", "local_rank", "local_size"), lambda: 0))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", fake)  # type: ignore[arg-type]
    for name in ("HOROVOD_CYCLE_TIME", "HOROVOD_DISABLE_GROUP_FUSION"):  # restored afterwards
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", given or "")
    if given is None:
        monkeypatch.delenv("HOROVOD_GLOO_TIMEOUT_SECONDS")
    horovod.connect(40.0, "use_horovod")
    assert seen == [expected]
    if given is None:
        monkeypatch.delenv("HOROVOD_GLOO_TIMEOUT_SECONDS")
