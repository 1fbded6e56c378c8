"""Elastic training without processes: which errors mean that another process is lost."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from returnn_tf.cli.launch.processes import environments
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.distributed import elastic, membership
from returnn_tf.engine.distributed import world as worlds
from returnn_tf.util.lazy_tf import tf

CLOSED = "{{function_node __wrapped__%s_device_CPU:0}} Gloo: connection closed by peer [Op:%s]"


class Lost(Exception):
    """As Horovod's own."""


class Common:
    """Horovod's module of that name: runs the function until it ends."""

    class State:
        """Takes what Horovod's takes."""

        def __init__(self, *args: Any) -> None:
            pass

    @staticmethod
    def run_fn(function: Any, rendezvous_again: Any) -> Any:
        """Return Horovod's loop."""

        def run(state: Any) -> None:
            while True:
                try:
                    return function(state)
                except Lost:
                    rendezvous_again()

        return run


class World:
    """Of several processes."""

    rank, size = 0, 2

    @property
    def elastic(self) -> bool:
        """Return whether horovodrun is said to have started this process in elastic mode."""
        return elastic.requested()

    def __init__(self) -> None:
        self.met = 0

    def rendezvous_again(self) -> None:
        """Count."""
        self.met += 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return how often the processes met again while these errors were raised one after the other."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    exceptions = type("exceptions", (), {"HorovodInternalError": Lost, "HostsUpdatedInterrupt": KeyboardInterrupt})
    functions = type("functions", (), {"broadcast_object": None})
    modules = {"horovod.common.elastic": Common, "horovod.common.exceptions": exceptions}
    modules["horovod.tensorflow.functions"] = functions
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)

    def run(*errors: Exception) -> int:
        left: list[Exception] = list(errors)

        def train() -> None:
            if left:
                raise left.pop(0)

        world = World()
        elastic.run(world, train)
        return world.met

    return run


@pytest.mark.parametrize("op", ["HorovodAllreduce", "HorovodAllgather", "HorovodBroadcast"])
def test_the_connection_is_lost_in_any_operation(runs: Any, op: str) -> None:
    """In a step, and between two steps, where the processes agree on something."""
    lost = tf.errors.UnknownError(None, None, CLOSED % (op, op))
    wrapped = DataError("train epoch 1: op failed")
    wrapped.__cause__ = lost
    assert runs(lost, wrapped) == 2


def test_own_errors_are_not_taken_for_lost_processes(runs: Any) -> None:
    """These would come again for ever."""
    bad_op = tf.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 3)")
    for error in (bad_op, DataError("net/horovod.001 can't be read"), KeyError("Horovod")):
        with pytest.raises(type(error)):
            runs(error)


def test_world_size_may_have_changed_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process that is started again tells of the world at its start."""

    class Found(worlds.World):
        rank, size = 0, 2

        def __init__(self, collectives: Any) -> None:
            super().__init__()

        @property
        def elastic(self) -> bool:  # type: ignore[override]
            """Return whether horovodrun is said to have started this process in elastic mode."""
            return elastic.requested()

        def rendezvous(self, timeout: float) -> None:
            """Do nothing."""

    monkeypatch.setattr(worlds, "MultiProcessWorld", Found)
    monkeypatch.setattr(worlds, "_started", [])
    monkeypatch.setattr(worlds.horovod, "connect", lambda timeout, setting: None)
    monkeypatch.setattr(worlds.devices, "set_up", lambda *args: None)
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    config = Config({"use_horovod": True})
    with pytest.raises(Exception, match="Horovod sees 2 processes, but HOROVOD_SIZE = 3"):
        worlds.start(config)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    assert worlds.start(config).size == 2


@pytest.mark.parametrize("name, value", [("start_epoch", 1), ("save_sharded", True)])
def test_refused_settings(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without elastic mode they are nobody's business here."""
    elastic.check(World(), Config({name: value}))
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(ConfigError, match="%s.*Remove it" % name):
        elastic.check(World(), Config({name: value}))


def test_refused_settings_where_launch_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes end with a lost one, so that none waits for its share of a checkpoint."""
    monkeypatch.setenv(membership.LEAST, "1")
    elastic.check(worlds.World(), Config({"save_sharded": True}))
    with pytest.raises(ConfigError, match="start_epoch.*start without --min-processes"):
        elastic.check(worlds.World(), Config({"start_epoch": 1}))


def test_launch_may_have_started_fewer_processes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the scheduler knows of more."""
    for name, value in environments([12345], "secret", {})[0].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setattr(worlds, "_started", [])
    with pytest.raises(ConfigError, match="sees 1 process, but Slurm's SLURM_NTASKS = 2"):
        worlds.start(Config({}))
    monkeypatch.setenv(membership.LEAST, "1")
    assert worlds.start(Config({})).size == 1


@pytest.mark.parametrize("name, value", [("start_epoch", "auto"), ("start_epoch", None), ("save_sharded", False)])
def test_the_same_settings_without_effect(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    elastic.check(World(), Config({name: value}))
