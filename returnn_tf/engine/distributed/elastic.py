"""Elastic mode, ``horovodrun --min-np``: processes may leave and join during training.

With ``returnn-tf launch --min-processes`` all processes end when one is lost, and the launcher starts fewer of them.

The committed state is on disk: the checkpoints of epochs, and the mid-epoch ones of ``save_every_steps``. When a
process is lost, the others rendezvous again, load the newest checkpoint and resume with the sequences that none of them
had done by then; when one joins, that happens at the next checkpoint. So a lost process costs at most the steps since
the last checkpoint.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable

from returnn_tf.config import Config
from returnn_tf.config.errors import DistributedError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.distributed import membership
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf


def requested() -> bool:
    """Return whether horovodrun started this process in elastic mode."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def starts_again() -> bool:
    """Return whether ``returnn-tf launch`` starts the processes again, but fewer, when one is lost."""
    return membership.LEAST in os.environ


def lost_rank(exc: BaseException) -> Exception:
    """Return the error which signals the loss of another process to Horovod."""
    exceptions = importlib.import_module("horovod.common.exceptions")
    error: Exception = exceptions.HorovodInternalError(str(exc))
    return error


def check(world: Any, config: Config) -> None:
    """Check that the config allows elastic mode, if the processes were started in it.

    :raises ConfigError: ``start_epoch`` is set, which would restart training whenever a process is lost; or, with
        Horovod, ``save_sharded``, where a lost process leaves the chief waiting for its share while the others regroup
    """
    if not world.elastic and not starts_again():
        return
    if TrainingSettings(config).start_epoch != "auto":
        raise DistributedError(
            "%s: whenever a process is lost, elastic training resumes from its newest checkpoint, but start_epoch "
            "would restart it. Remove it, or start without %s."
            % (
                TrainingSettings(config).describe_source("start_epoch"),
                "--min-np" if world.elastic else "--min-processes",
            )
        )
    if world.elastic and CheckpointSettings(config).save_sharded:
        raise DistributedError(
            "%s: it needs all processes until a checkpoint is written, but in elastic training they may leave at any "
            "time. Remove it, or start without --min-np." % CheckpointSettings(config).describe_source("save_sharded")
        )


def run(world: Any, train: Callable[[], None]) -> None:
    """Call the function; in elastic mode, call it again after each lost process until it ends cleanly.

    :param train: runs training to the end, from the newest checkpoint on
    """
    if not world.elastic:
        train()
        return
    common = importlib.import_module("horovod.common.elastic")
    functions = importlib.import_module("horovod.tensorflow.functions")

    class State(common.State):  # type: ignore[name-defined,misc]
        """State without contents: all of it is on disk, so there is nothing to keep or to send."""

        def save(self) -> None:
            """Do nothing; checkpoints are written by the engine."""

        def restore(self) -> None:
            """Warn of the lost process; the engine loads the newest checkpoint."""
            log.warn("A process is lost; the others rendezvous again and resume from the newest checkpoint.")

        def sync(self) -> None:
            """Do nothing; all processes load the same checkpoint."""

    def guarded(state: Any) -> None:
        try:
            train()
        except Exception as exc:
            if not _of_horovod(exc) or isinstance(exc, exceptions.HostsUpdatedInterrupt):
                raise
            raise lost_rank(exc) from exc

    exceptions = importlib.import_module("horovod.common.exceptions")
    world.elastic_state = State(functions.broadcast_object, lambda: world.rank)
    try:
        common.run_fn(guarded, world.rendezvous_again)(world.elastic_state)
    finally:
        world.elastic_state = None


def _of_horovod(exc: BaseException) -> bool:
    """Return whether a Horovod operation failed, here or as a cause of the error."""
    seen = exc
    while seen is not None:
        if type(seen).__name__ == "HorovodInternalError" or "Horovod has been shut down" in str(seen):
            return True
        if isinstance(seen, tf.errors.OpError) and "orovod" in str(seen):  # the op has a name such as HorovodAllreduce
            return True
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return False
