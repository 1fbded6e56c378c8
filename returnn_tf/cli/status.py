"""``returnn-tf status MODEL_DIR``: the state of a running or dead training run, from its files, without TensorFlow."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import sys
import time
from typing import Any, Optional

from returnn_tf.cli.commands import register_command
from returnn_tf.config.errors import CommandError, DataError
from returnn_tf.engine.checkpoints.lock import holder_alive, seconds_since_beat
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, read_file, scores_of
from returnn_tf.engine.monitoring import status_file
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.logging.text import hms, printable

USAGE = "returnn-tf status MODEL_DIR_OR_PREFIX ... [--json | --point]"
_NO_RUN = "status: no run %s%r: neither .*%s nor checkpoints"
_STEP = re.compile(r"\.step\d+$")
_SILENT = 120.0  # seconds after which a run on another machine is reported as silent
_SHOWN_CHECKPOINTS = 5


@register_command(
    "status",
    "MODEL_DIR_OR_PREFIX ... [--json | --point]",
    "show the state of a running or dead training run, from its files",
    details="  --json    all facts, for programs\n  --point   only the epoch and step at which a run would resume",
    group="look",
)
def run(args: list[str]) -> int:
    """Print the status of the runs in folders, or of those with the given checkpoint prefix (setting ``model``).

    :param args: folders and prefixes; ``--json``: all facts, for programs; ``--point``: only the resume point
    """
    options = [arg for arg in args if arg.startswith("-")]
    paths = [arg for arg in args if not arg.startswith("-")]
    if not paths or any(option not in ("--json", "--point") for option in options):
        raise CommandError("status: expected " + USAGE)
    models = [model for path in paths for model in models_at(path)]
    if "--point" in options:
        print("\n".join(point(model) for model in models))
        return 0
    found = [facts_of(model) for model in models]
    for facts in found:
        if not ("silence" in facts or facts["checkpoints"] or facts["problems"]):
            raise CommandError(_NO_RUN % ("", facts["model"], status_file.SUFFIX))
    if "--json" in options:
        json.dump(_finite(found), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print("\n\n".join("\n".join(map(printable, report(facts))) for facts in found))
    return 0


def _finite(value: Any) -> Any:
    """Replace NaN and Inf, which JSON lacks, by None: the loss of a run may be one of them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        raise CommandError(_NO_RUN % ("in the folder ", path, status_file.SUFFIX))
    return sorted(found)


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
    """Return all known facts: model, status (the facts of the file), alive, checkpoints, epochs, problems."""
    facts: dict[str, Any] = {"model": model, "status": {}, "alive": False, "problems": [], "epochs": {}}
    try:
        if os.path.exists(status_file.path_of(model)):
            facts["status"] = status_file.read_status(status_file.path_of(model))
            facts["alive"] = holder_alive(model)
            facts["silence"] = min(time.time() - facts["status"].get("updated", 0.0), seconds_since_beat(model))
    except DataError as exc:
        facts["problems"].append(str(exc))
    facts["checkpoints"] = [{"name": name, "defect": defect} for name, defect in checkpoints(model)]
    rates = facts["status"].get("learning_rate_file", "")
    try:
        if os.path.exists(rates):
            epochs = read_file(rates)
            facts["epochs"] = {epoch: scores_of(data.error) for epoch, data in sorted(epochs.items())}
            facts["best"] = _best(epochs)
    except DataError as exc:
        facts["problems"].append(str(exc))
    return facts


def _best(epochs: dict[int, EpochData]) -> dict[str, tuple[int, float]]:
    """Return score name -> (best epoch, its value)."""
    keys = sorted({key for data in epochs.values() for key, value in data.error.items() if isinstance(value, float)})
    best = {key: best_epochs(epochs, key, 1) for key in scores_of(dict.fromkeys(keys))}
    return {key: (found[0], epochs[found[0]].error[key]) for key, found in best.items() if found}


def report(facts: dict[str, Any]) -> list[str]:
    """Return the human-readable lines."""
    status = facts["status"]
    lines = ["%s: %s" % (facts["model"], _state(facts))]
    if status:
        lines += [_place(status), *_signal(status), *_ranks(status)]
    best = ["%s %.6g (epoch %d)" % (key, value, epoch) for key, (epoch, value) in facts.get("best", {}).items()]
    lines += ["best: " + ", ".join(best)] if best else []
    lines += [_checkpoints_line(facts["checkpoints"])]
    lines += ["problem: %s" % text for text in facts["problems"]]
    return [lines[0]] + ["  " + line for line in lines[1:] if line]


def _state(facts: dict[str, Any]) -> str:
    status = facts["status"]
    if not status:
        return "no status file, only checkpoints"
    who = "pid %s on %s" % (status.get("pid", "?"), status.get("host", "?"))
    silence = facts["silence"]
    if "ended" in status and facts["alive"] is False:
        ended = status["ended"]
        code = ", exit code %s" % ended["exit_code"] if ended.get("exit_code") is not None else ""
        return "ended (%s%s) at %s; it was %s" % (ended.get("reason", "?"), code, _when(ended.get("time")), who)
    if facts["alive"]:
        running = time.time() - status.get("started", time.time())
        return "running as %s for %s, last update %s ago" % (who, hms(running), hms(silence))
    if facts["alive"] is None:
        verb = "probably running" if silence < _SILENT else "silent, perhaps dead"
        return "%s as %s, last update %s ago" % (verb, who, hms(silence))
    return "dead without a final status (killed, or the machine went down): %s, last update at %s" % (
        who,
        _when(status.get("updated")),
    )


def _place(status: dict[str, Any]) -> str:
    parts = []
    if "epoch" in status:
        parts.append("epoch %s of %s" % (status["epoch"], status.get("num_epochs", "?")))
    if "step" in status:
        parts.append("step %s (total %s)" % (status["step"], status.get("global_step", "?")))
    if "complete" in status:
        parts.append("%.1f%% of the epoch" % (100 * status["complete"]))
    if "seconds_per_step" in status:
        parts.append("%.3f s/step" % status["seconds_per_step"])
    for key, text in (("frames_per_second", "%.0f frames/s"), ("loss", "loss %.6g")):
        if isinstance(status.get(key), (int, float)):
            parts.append(text % status[key])
    return ", ".join(parts)


def _signal(status: dict[str, Any]) -> list[str]:
    signal = status.get("signal")
    return ["last signal: %s at %s" % (signal.get("name", "?"), _when(signal.get("time")))] if signal else []


def _ranks(status: dict[str, Any]) -> list[str]:
    """Return one line per rank from the status file."""
    ranks = [rank for rank in status.get("ranks", []) if isinstance(rank, dict)]
    if len(ranks) < 2:
        return []
    names = ["rank %d on %s" % pair for pair in enumerate(status.get("hosts") or ["?"] * len(ranks))]
    texts = [", ".join("%s %s" % (key, _number(value)) for key, value in rank.items()) for rank in ranks]
    return ["%s: %s" % pair for pair in zip(names, texts)]


def _number(value: Any) -> str:
    return "%.4g" % value if isinstance(value, float) else str(value)


def _checkpoints_line(found: list[dict[str, Any]]) -> str:
    whole = [each["name"] for each in found if each["defect"] is None]
    text = "resumes at %s" % (whole[0] if whole else "the beginning: there is no valid checkpoint")
    if whole[1:]:
        more = ", ..." if len(whole) > _SHOWN_CHECKPOINTS else ""
        text += "; other checkpoints: %s%s" % (", ".join(whole[1:_SHOWN_CHECKPOINTS]), more)
    bad = ["%s (%s)" % (each["name"], each["defect"]) for each in found if each["defect"] is not None]
    return text + ("; not usable: %s" % ", ".join(bad) if bad else "")


def _when(seconds: Any) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
    except (TypeError, ValueError, OverflowError, OSError):
        return "an unknown time"
