"""Averages of checkpoints: the mean of each parameter."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CheckpointDataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.bundle import write_bundle
from returnn_tf.engine.checkpoints.selection import checkpoint_exists
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.util.lazy_tf import tf

_STATE_FILE = "checkpoint"
_VARIABLE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./>-]*")  # names of ops
_SUFFIXES = (".data-00000-of-00001", ".meta", ".index")  # what makes it a checkpoint comes last


def average(prefixes: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the mean of each float or complex number in several checkpoints; of other types, the last one's value.

    Sums are in float64, or complex128. Only one checkpoint is in memory at a time, besides the sums.

    :param prefixes: paths without suffix
    :raises DataError: a checkpoint is damaged, or has other names or shapes than the first
    """
    sums: dict[str, NDArray[Any]] = {}
    values: dict[str, NDArray[Any]] = {}
    for prefix in prefixes:
        values = checkpoint.read(prefix)
        _check_same(prefixes[0], sums, prefix, values)
        for name, value in values.items():
            if not _has_mean(value):
                sums[name] = value
            elif name in sums:
                sums[name] += value
            else:
                sums[name] = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    count = len(prefixes)
    return {
        name: (sums[name] / count).astype(value.dtype) if _has_mean(value) else value for name, value in values.items()
    }


def last_of_folder(prefix: str, count: int) -> list[str]:
    """Return the newest checkpoints with a prefix, oldest first: of those in the file "checkpoint", else by number.

    :param prefix: e.g. ``models/epoch.``
    :raises DataError: there are none
    """
    folder = os.path.dirname(prefix)
    try:
        check_regular(os.path.join(folder, _STATE_FILE))
        state = tf.train.get_checkpoint_state(folder or ".")
    except FileNotFoundError:
        state = None
    except OSError as exc:
        raise CheckpointDataError(
            "%s can't be read: %s" % (os.path.join(folder, _STATE_FILE), exc.strerror or exc)
        ) from None
    named = (
        [] if state is None else [os.path.join(folder, os.path.basename(p)) for p in state.all_model_checkpoint_paths]
    )
    found = [path for path in named if path.startswith(prefix) and checkpoint_exists(path)]
    if not found and os.path.isdir(folder or "."):
        names = [name[: -len(".index")] for name in os.listdir(folder or ".") if name.endswith(".index")]
        paths = [os.path.join(folder, name) for name in names]
        numbered = [path for path in paths if path.startswith(prefix) and path[len(prefix) :].isdecimal()]
        found = sorted(numbered, key=lambda path: int(path[len(prefix) :]))
    if not found:
        raise CheckpointDataError("there are no checkpoints %s*.index" % prefix)
    return found[-count:]


def _has_mean(value: NDArray[Any]) -> bool:
    return value.dtype.kind in "fcV" or value.dtype.name == "bfloat16"


def _check_same(first: str, sums: dict[str, NDArray[Any]], prefix: str, values: dict[str, NDArray[Any]]) -> None:
    """Check that a checkpoint has the names and shapes of the first one."""
    if not sums:
        return
    for name in sorted(set(sums) ^ set(values)):
        have, lack = (first, prefix) if name in sums else (prefix, first)
        raise CheckpointDataError(
            "%r is in the checkpoint %s, but not in %s: they are of different networks" % (name, have, lack)
        )
    for name, value in values.items():
        if value.shape != sums[name].shape:
            shapes = (name, list(value.shape), prefix, list(sums[name].shape), first)
            raise CheckpointDataError("%r has the shape %s in the checkpoint %s, but %s in %s" % shapes)


def write_with_graph(prefix: str, values: dict[str, NDArray[Any]]) -> list[str]:
    """Write a checkpoint with a graph of just its variables, and the file "checkpoint" that names it.

    Each file gets its name when all are complete.

    :param prefix: path without suffix; existing files are replaced, but not those of a training run
    :return: the paths of the files
    :raises DataError: a training run has a checkpoint there, or a file can't be written
    """
    folder, name = os.path.split(os.path.abspath(prefix))
    if len(checkpoint.file_names(prefix)) and os.path.exists(prefix + ".manifest.json"):
        raise CheckpointDataError("%s is a checkpoint of a training run. Choose another name for the average" % prefix)
    try:
        os.makedirs(folder, exist_ok=True)
        with files.staging(folder, name) as temp:
            write_bundle(os.path.join(temp, name), values)
            _write_graph(os.path.join(temp, name + ".meta"), values)
            with open(os.path.join(temp, _STATE_FILE), "w", encoding="utf8") as file:
                file.write('model_checkpoint_path: "%s"\nall_model_checkpoint_paths: "%s"\n' % (name, name))
            names = [name + suffix for suffix in _SUFFIXES]
            files.publish(temp, folder, [_STATE_FILE, *names])
    except (OSError, tf.errors.OpError) as exc:
        raise CheckpointDataError(
            "the checkpoint %s can't be written: %s" % (prefix, getattr(exc, "strerror", exc))
        ) from exc
    return [os.path.join(folder, each) for each in names]


def _write_graph(path: str, values: dict[str, NDArray[Any]]) -> None:
    """Write a graph with the variables, and what saves and restores them."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        for name, value in sorted(values.items()):
            if value.dtype.kind != "O" and _VARIABLE.fullmatch(name):
                v1.get_variable(name, value.shape, tf.as_dtype(value.dtype), v1.zeros_initializer(), use_resource=False)
        v1.train.Saver().export_meta_graph(path)
