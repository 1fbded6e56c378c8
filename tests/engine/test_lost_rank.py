"""Operations of all ranks that fail because one is lost: outside of a step, too, that is no bug of ours."""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Callable

import pytest
import tensorflow as tf

from returnn_tf.config import DataError
from returnn_tf.engine.distributed import horovod
from returnn_tf.engine.distributed.horovod import HorovodCollectives
from returnn_tf.engine.distributed.world import MultiProcessWorld


def broken(message: str) -> MultiProcessWorld:
    """Return a world of Horovod whose operations fail."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise tf.errors.UnknownError(None, None, message)

    fake = types.SimpleNamespace(allreduce=fail, allgather=fail, broadcast_variables=fail, Sum=None)
    for name, number in (("rank", 1), ("size", 2), ("local_rank", 1), ("local_size", 2)):
        setattr(fake, name, lambda number=number: number)
    return MultiProcessWorld(HorovodCollectives(fake))


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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_outside_of_a_step(operation: Callable[[MultiProcessWorld], Any], waits: list[float]) -> None:
    world = broken("HorovodAllreduce has failed: [gloo/transport/tcp/pair.cc] Connection closed by peer")
    with pytest.raises(DataError, match="Another rank has ended, or the connection to it is broken"):
        operation(world)
    assert waits == [10.0] and not world.heartbeat.waiting


def test_other_errors_pass(waits: list[float]) -> None:
    with pytest.raises(tf.errors.UnknownError):
        broken("out of something").any(True)
    assert waits == []


@pytest.mark.parametrize("given, expected", [(None, "180"), ("7", "7")])
def test_gloo_waits_for_longer_than_the_watchdog(given: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has set another time."""
    seen: list[str] = []
    init = lambda: seen.append(os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"])  # noqa: E731
    fake = types.SimpleNamespace(init=init, **dict.fromkeys(("rank", "size", "local_rank", "local_size"), lambda: 0))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", given or "")
    if given is None:
        monkeypatch.delenv("HOROVOD_GLOO_TIMEOUT_SECONDS")
    horovod.connect(40.0, "use_horovod")
    assert seen == [expected]
    if given is None:
        monkeypatch.delenv("HOROVOD_GLOO_TIMEOUT_SECONDS")
