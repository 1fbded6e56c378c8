"""``returnn-tf status MODEL_DIR``: the state of a running or dead training run, from its files, without TensorFlow."""

from __future__ import annotations

import datetime
import json
import math
import os
import sys
import time
from typing import Any

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.status import watch
from returnn_tf.cli.status.facts import NO_RUN, facts_of, models_at, point, state_of
from returnn_tf.config.errors import CommandError
from returnn_tf.engine.monitoring import status_file
from returnn_tf.logging.text import hms, printable

USAGE = "returnn-tf status MODEL_DIR_OR_PREFIX ... [--json | --point | --watch]"
_OPTIONS = ("--json", "--point", "--watch")
_SHOWN_CHECKPOINTS = 5


@register_command(
    "status",
    "MODEL_DIR_OR_PREFIX ... [--json | --point | --watch]",
    "show the state of a running or dead training run, from its files",
    details="  --json    all facts, for programs\n  --point   only the epoch and step at which a run would resume\n"
    "  --watch   all runs in folders and below them, again and again, until Ctrl-C; a line for each news where the\n"
    "            output is no terminal",
    group="look",
)
def run(args: list[str]) -> int:
    """Print the status of the runs in folders, or of those with the given checkpoint prefix (setting ``model``).

    :param args: folders and prefixes; ``--json``: all facts, for programs; ``--point``: only the resume point;
        ``--watch``: all runs below folders, live
    """
    options = [arg for arg in args if arg.startswith("-")]
    paths = [arg for arg in args if not arg.startswith("-")]
    if not paths or len(options) > 1 or any(option not in _OPTIONS for option in options):
        raise CommandError("status: expected " + USAGE)
    if "--watch" in options:
        for path in paths:
            if not os.path.isdir(path):
                raise CommandError("status: --watch shows all runs below folders, and %r is no folder" % path)
        return watch.run(paths, sys.stdout)
    models = [model for path in paths for model in models_at(path)]
    if "--point" in options:
        print("\n".join(point(model) for model in models))
        return 0
    found = [facts_of(model) for model in models]
    for facts in found:
        if not ("silence" in facts or facts["checkpoints"] or facts["problems"]):
            raise CommandError(NO_RUN % ("", facts["model"], status_file.SUFFIX))
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
    state = state_of(facts)
    if state == "ended":
        ended = status["ended"]
        code = ", exit code %s" % ended["exit_code"] if ended.get("exit_code") is not None else ""
        return "ended (%s%s) at %s; it was %s" % (ended.get("reason", "?"), code, _when(ended.get("time")), who)
    if state == "running":
        running = time.time() - status.get("started", time.time())
        return "running as %s for %s, last update %s ago" % (who, hms(running), hms(silence))
    if state == "dead":
        return "dead without a final status (killed, or the machine went down): %s, last update at %s" % (
            who,
            _when(status.get("updated")),
        )
    verb = "silent, perhaps dead" if state == "silent" else state
    return "%s as %s, last update %s ago" % (verb, who, hms(silence))


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
