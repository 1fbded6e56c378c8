"""What the files of a run tell about it."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.config.errors import CommandError, DataError
from returnn_tf.engine.checkpoints.lock import holder_alive, seconds_since_beat
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, read_file, scores_of
from returnn_tf.engine.monitoring import status_file
from returnn_tf.engine.support import atomic_files as files

NO_RUN = "status: no run %s%r: neither .*%s nor checkpoints"
_STEP = re.compile(r"\.step\d+$")
_SILENT = 120.0  # seconds after which a run on another machine is reported as silent


def models_at(path: str) -> list[str]:
    """Return the checkpoint prefixes of a path: the path itself, or all in a folder.

    :raises ConfigError: there is no run in a folder
    """
    if not os.path.isdir(path):
        return [status_file.model_of(path) or path]
    found = status_file.models_in(path)
    for name in os.listdir(path):
        stem, _, epoch = _STEP.sub("", name[: -len(".index")]).rpartition(".")
        if name.endswith(".index") and epoch.isdecimal():
            found.add(os.path.join(path, stem[: -len(".pretrain")] if stem.endswith(".pretrain") else stem))
    if not found:
        raise CommandError(NO_RUN % ("in the folder ", path, status_file.SUFFIX))
    return sorted(found)


def runs_below(folder: str) -> Iterator[str]:
    """Yield the checkpoint prefixes of all runs in a folder and the folders below it that have a status file."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        yield from sorted(filter(None, (status_file.model_of(os.path.join(path, name)) for name in names)))


def point(model: str) -> str:
    """Return the resume point of a run as text that changes only when the run makes progress."""
    whole = [name for name, defect in checkpoints(model) if defect is None]
    return whole[0] if whole else "the beginning"


def checkpoints(model: str) -> list[tuple[str, Optional[str]]]:
    """Return the names of all checkpoints, the most advanced first, each with its defect (None: usable).

    Sizes are checked; checksums are not, since that means reading everything.
    """
    epochs, steps = find_checkpoints(model, damaged=True), find_step_checkpoints(model, damaged=True)
    found: dict[tuple[int, float], str] = {(epoch, math.inf): path for epoch, path in epochs.items()}
    found.update({(epoch, float(step)): path for (epoch, step), path in steps.items()})
    return [(os.path.basename(found[key]), _defect(found[key])) for key in sorted(found, reverse=True)]


def _defect(prefix: str) -> Optional[str]:
    try:
        manifest = files.read_manifest(prefix + ".manifest.json")
        for name, described in ((manifest or {}).get("files") or {}).items():
            size = os.path.getsize(os.path.join(os.path.dirname(prefix), os.path.basename(name)))
            if size != described["size"]:
                return "%s has %d bytes, expected %s" % (name, size, described["size"])
    except FileNotFoundError as exc:
        return "%s is missing" % os.path.basename(str(exc.filename))
    except (DataError, OSError, KeyError, TypeError) as exc:
        return "its manifest is damaged: %s" % exc
    return None


def facts_of(model: str) -> dict[str, Any]:
    """Return all known facts: those of `progress_of`, and the checkpoints."""
    facts = progress_of(model)
    facts["checkpoints"] = [{"name": name, "defect": defect} for name, defect in checkpoints(model)]
    return facts


def progress_of(model: str) -> dict[str, Any]:
    """Return model, status (the facts of the file), alive, silence, epochs (their scores), best, problems."""
    facts: dict[str, Any] = {"model": model, "status": {}, "alive": False, "problems": [], "epochs": {}}
    try:
        if os.path.exists(status_file.path_of(model)):
            facts["status"] = status_file.read_status(status_file.path_of(model))
            facts["alive"] = holder_alive(model)
            facts["silence"] = min(time.time() - facts["status"].get("updated", 0.0), seconds_since_beat(model))
    except DataError as exc:
        facts["problems"].append(str(exc))
    rates = facts["status"].get("learning_rate_file", "")
    try:
        if os.path.exists(rates):
            epochs = read_file(rates)
            facts["epochs"] = {epoch: scores_of(data.error) for epoch, data in sorted(epochs.items())}
            facts["best"] = _best(epochs)
    except DataError as exc:
        facts["problems"].append(str(exc))
    return facts


def state_of(facts: dict[str, Any]) -> str:
    """Return the state of a run that has a status file.

    :return: "ended", "running", "probably running" or "silent" (on another machine), or "dead": without a final status
    """
    if facts["alive"] is False:
        return "ended" if "ended" in facts["status"] else "dead"
    if facts["alive"]:
        return "running"
    return "probably running" if facts["silence"] < _SILENT else "silent"


def _best(epochs: dict[int, EpochData]) -> dict[str, tuple[int, float]]:
    """Return score name -> (best epoch, its value)."""
    keys = sorted({key for data in epochs.values() for key, value in data.error.items() if isinstance(value, float)})
    best = {key: best_epochs(epochs, key, 1) for key in scores_of(dict.fromkeys(keys))}
    return {key: (found[0], epochs[found[0]].error[key]) for key, found in best.items() if found}
