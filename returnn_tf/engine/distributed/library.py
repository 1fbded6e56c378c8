"""Import of Horovod, with errors which explain how to install it."""

from __future__ import annotations

import importlib
import os
from typing import Any

from returnn_tf.config.errors import HorovodError
from returnn_tf.util.installing import install_command
from returnn_tf.util.lazy_tf import tf

_BUILD = "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 "
_CYCLE_MILLISECONDS = "3"
_GLOO_PATIENCE, _GLOO_SECONDS = 3, 60
_hvd: list[Any] = []


def install() -> str:
    """Return the command that builds and installs Horovod."""
    return _BUILD + install_command("horovod", options="--no-build-isolation --no-cache-dir")


def load(timeout: float) -> Any:
    """Return ``horovod.tensorflow``, initialised, so that this process has joined the world.

    :param timeout: seconds without progress of a process until all end with its name; Gloo itself must wait for longer
    :raises ConfigError: it is not installed, was built without TensorFlow, or can't reach the other processes
    """
    if not _hvd:
        _hvd.append(_load(timeout))
    return _hvd[0]


def loaded() -> bool:
    """Return whether this process has joined a world."""
    return bool(_hvd)


def _load(timeout: float) -> Any:
    try:
        hvd = importlib.import_module("horovod.tensorflow")
    except ModuleNotFoundError as exc:
        if (exc.name or "").split(".")[0] != "horovod":
            raise
        raise HorovodError("use_horovod is set, but Horovod is not installed. Install it: %s" % install()) from exc
    except ImportError as exc:
        raise HorovodError(
            "use_horovod is set, but this Horovod does not work with TensorFlow: %s. It was built without TensorFlow, "
            "or for another version of it. Rebuild it: pip uninstall -y horovod; %s" % (exc, install())
        ) from exc
    if not tf.config.list_physical_devices("GPU"):
        # Horovod polls for work with this period; its default of 1 ms takes a tenth of a core from training
        os.environ.setdefault("HOROVOD_CYCLE_TIME", _CYCLE_MILLISECONDS)
    # the default of 30 s would end the others before it is known which rank hangs
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "%i" % (_GLOO_PATIENCE * timeout + _GLOO_SECONDS))
    try:
        hvd.init()
    except Exception as exc:  # MPI and Gloo have their own exception types
        raise HorovodError(
            "Horovod can't start: %s. Start the processes by mpirun, srun or horovodrun; "
            "horovodrun --check-build shows what this Horovod was built with." % exc
        ) from exc
    return hvd
