"""Horovod as the engine of several processes: its operations, and errors which explain how to install it."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from typing import Any

from returnn_tf.config.errors import DistributedError
from returnn_tf.engine.distributed import elastic
from returnn_tf.engine.distributed.collectives import Collectives
from returnn_tf.util.installing import install_command
from returnn_tf.util.lazy_tf import tf

_BUILD = "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 "
_CYCLE_MILLISECONDS = "3"
_GLOO_PATIENCE, _GLOO_SECONDS = 3, 60
_LENGTH_BYTES = 8  # of the length before each gathered content


class HorovodCollectives(Collectives):
    """Collectives of Horovod.

    :param hvd: ``horovod.tensorflow``, initialised
    """

    engine = "Horovod"

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self._refresh()

    def _refresh(self) -> None:
        self.rank, self.size = self._hvd.rank(), self._hvd.size()
        self.local_rank, self.local_size = self._hvd.local_rank(), self._hvd.local_size()

    @property
    def elastic(self) -> bool:  # type: ignore[override]
        """Return whether horovodrun started this process in elastic mode."""
        return elastic.requested()

    def restart(self) -> None:
        """Leave the world and join it again, in elastic mode; rank and size may change."""
        self._hvd.shutdown()
        self._hvd.init()
        self._refresh()

    def sum(self, tensor: Any, name: str) -> Any:
        """Return the sum of an allreduce."""
        with tf.device("/CPU:0"):
            return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)

    def sum_group(self, tensors: Sequence[Any], name: str, *, on_host: bool = False) -> list[Any]:
        """Return the sums of a grouped allreduce."""
        with tf.device("/CPU:0") if on_host else contextlib.nullcontext():
            summed: list[Any] = self._hvd.grouped_allreduce(list(tensors), op=self._hvd.Sum, name=name)
        return summed

    def gather(self, content: bytes, name: str) -> list[bytes]:
        """Return the contents, sent in one allgather, each after its length."""
        with tf.device("/CPU:0"):
            sent = tf.io.decode_raw(tf.constant(len(content).to_bytes(_LENGTH_BYTES, "big") + content), tf.uint8)
            together = self._hvd.allgather(sent, name=name).numpy().tobytes()
        contents, start = [], 0
        for _ in range(self.size):
            length = int.from_bytes(together[start : start + _LENGTH_BYTES], "big")
            start += _LENGTH_BYTES + length
            contents.append(together[start - length : start])
        return contents

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Send the values of rank 0."""
        self._hvd.broadcast_variables(variables, root_rank=0)

    def lost_rank(self, exc: BaseException) -> str:
        """Return the error if it names Horovod, as those of its ops do, or its transport."""
        return str(exc) if "orovod" in str(exc) or "[gloo]" in str(exc).lower() else ""


def install() -> str:
    """Return the command that builds and installs Horovod."""
    return _BUILD + install_command("horovod", options="--no-build-isolation --no-cache-dir")


def connect(timeout: float, setting: str) -> HorovodCollectives:
    """Join the other processes.

    :param timeout: seconds without progress of a process until all end with its name; Gloo itself must wait for longer
    :param setting: what asks for Horovod, for messages
    :raises ConfigError: it is not installed, was built without TensorFlow, or can't reach the other processes
    """
    try:
        hvd = importlib.import_module("horovod.tensorflow")
    except ModuleNotFoundError as exc:
        if (exc.name or "").split(".")[0] != "horovod":
            raise
        raise DistributedError(
            "%s is set, but Horovod is not installed. Install it: %s. Or start the processes by returnn-tf launch, "
            "which needs no more than TensorFlow." % (setting, install())
        ) from exc
    except ImportError as exc:
        raise DistributedError(
            "%s is set, but this Horovod does not work with TensorFlow: %s. It was built without TensorFlow, "
            "or for another version of it. Rebuild it: pip uninstall -y horovod; %s" % (setting, exc, install())
        ) from exc
    if not tf.config.list_physical_devices("GPU"):
        # Horovod polls for work with this period; its default of 1 ms takes a tenth of a core from training
        os.environ.setdefault("HOROVOD_CYCLE_TIME", _CYCLE_MILLISECONDS)
    # sums of more than two ranks depend on the place of a number in its message: always the same message, same bits
    os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
    # the default of 30 s would end the others before it is known which rank hangs
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "%i" % (_GLOO_PATIENCE * timeout + _GLOO_SECONDS))
    try:
        hvd.init()
    except Exception as exc:  # MPI and Gloo have their own exception types
        raise DistributedError(
            "Horovod can't start: %s. Start the processes by mpirun, srun or horovodrun; "
            "horovodrun --check-build shows what this Horovod was built with." % exc
        ) from exc
    return HorovodCollectives(hvd)
