"""Elastic mode, ``horovodrun --min-np``: processes may die and come while the training goes on.

What is committed is the train state on the disk: the checkpoints of epochs, and those which ``save_every_steps`` writes
within them. When a process is lost, the others meet anew, load the newest one and go on with the sequences that none of
them had done by then; when one comes, that happens at the next checkpoint. So a lost process costs at most the steps
since the last checkpoint.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings import TrainingSettings
from returnn_tf.engine.support.start_epoch import begins_anew
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf


def wanted() -> bool:
    """Whether horovodrun started this process in elastic mode."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def lost_rank(exc: BaseException) -> Exception:
    """Return the error by which Horovod knows that another process is lost.

    :param exc: of the operation that failed
    """
    exceptions = importlib.import_module("horovod.common.exceptions")
    error: Exception = exceptions.HorovodInternalError(str(exc))
    return error


def check(world: Any, config: Config) -> None:
    """
    :param world: World
    :param config: Config
    :raises ConfigError: in elastic mode ``start_epoch`` would undo what was done with each process that is lost
    """
    if _in_elastic_mode(world) and begins_anew(config):
        raise ConfigError(
            "%s: whenever a process is lost, an elastic training goes on from its newest checkpoint, and start_epoch "
            "would make it begin again. Remove it, or start without --min-np."
            % TrainingSettings(config).describe_source("start_epoch")
        )


def _in_elastic_mode(world: Any) -> bool:
    return wanted() and world.size >= 1 and hasattr(world, "hvd")


def run(world: Any, train: Callable[[], None]) -> None:
    """Calls the function; in elastic mode again and again until it ends in order.

    :param world: World
    :param train: the whole training, from the newest checkpoint on
    """
    if not _in_elastic_mode(world):
        train()
        return
    common = importlib.import_module("horovod.common.elastic")
    functions = importlib.import_module("horovod.tensorflow.functions")

    class State(common.State):  # type: ignore[name-defined,misc]
        """All of it is on the disk, so there is nothing to keep or to send here."""

        def save(self) -> None:
            """See the class."""

        def restore(self) -> None:
            """See the class."""
            log.warn("A process is lost; the others meet anew and go on from the newest checkpoint.")

        def sync(self) -> None:
            """See the class."""

    def guarded(state: Any) -> None:
        try:
            train()
        except Exception as exc:
            if not _of_horovod(exc) or isinstance(exc, exceptions.HostsUpdatedInterrupt):
                raise
            raise lost_rank(exc) from exc

    exceptions = importlib.import_module("horovod.common.exceptions")
    world.elastic_state = State(functions.broadcast_object, world.hvd.rank)
    try:
        common.run_fn(guarded, world.rendezvous_again)(world.elastic_state)
    finally:
        world.elastic_state = None


def _of_horovod(exc: BaseException) -> bool:
    """Whether an operation of Horovod failed, here or in what led to the error."""
    seen = exc
    while seen is not None:
        if type(seen).__name__ == "HorovodInternalError" or "Horovod has been shut down" in str(seen):
            return True
        if isinstance(seen, tf.errors.OpError) and "orovod" in str(seen):  # the op has a name such as HorovodAllreduce
            return True
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return False
