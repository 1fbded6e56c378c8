"""Sections of a report that need only the files of a run: scores, speed, settings, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.cli.report.page import Section, figure, wide
from returnn_tf.cli.runs.run import Run
from returnn_tf.cli.runs.scores import effort_rows, score_rows
from returnn_tf.engine.learning_rate.file import META, best_epochs
from returnn_tf.engine.monitoring.curves import draw_curves, score_groups
from returnn_tf.engine.monitoring.pictures import Picture, new_figure, whole_epochs
from returnn_tf.util.html import code, folded, paragraph, shortened, table

_MOST_EPOCHS = 12  # rows of a table that is not folded
_SPEED, _COMPUTE, _WAIT, _MEMORY = (
    "speed:frames_per_second",
    "speed:compute_share",
    "speed:data_wait_share",
    "memory:process",
)


def head_facts(run: Run) -> list[tuple[str, str]]:
    """Return the boxes at the top: epochs, the best of each deciding score, time, speed, memory."""
    facts = []
    for keys in score_groups([run.scored]).values():
        for key in (key for key in keys if not key.startswith("train_")):
            found = best_epochs(run.scored, key, 1)
            if found:
                facts.append(("%s, best: epoch %d" % (key, found[0]), "%.4g" % run.scored[found[0]].error[key]))
    return [*((name, values[0]) for name, values in effort_rows([run])), *facts[:6]]


def curves(run: Run) -> Section:
    """Return the curves, and the scores of all epochs."""
    rows = score_rows([run])
    keys = [key for keys in score_groups([run.scored]).values() for key in keys]
    epochs = [
        [epoch, "%.4g" % data.learning_rate, *("%.4g" % data.error[key] if key in data.error else "" for key in keys)]
        for epoch, data in run.scored.items()
    ]
    every = wide(table(["epoch", "learning rate", *keys], epochs, numbers=range(len(keys) + 2)))
    if len(epochs) > _MOST_EPOCHS:
        every = folded("all %d epochs" % len(epochs), every)
    pairs = [(best[0].rpartition(",")[0], best[1][0], last[1][0]) for best, last in zip(rows[::2], rows[1::2])]
    best = wide(table(("score", "best (epoch)", "last (epoch)"), pairs, numbers=[1, 2]))
    return Section("Curves", figure(draw_curves({"": run.scored}, width=9.5, height=2.4).svg()) + best + every)


def speed(run: Run) -> Section:
    """Return frames per second, shares of the time and memory by epoch."""
    epochs = run.scored
    values = {
        name: {e: data.error[META + name] for e, data in epochs.items() if META + name in data.error}
        for name in (_SPEED, _COMPUTE, _WAIT, _MEMORY)
    }
    if not values[_SPEED]:
        return Section("Speed and memory", paragraph("Not recorded: the run was trained by an older version."))
    drawn = new_figure(9.5, 2.6)
    left, middle, right = drawn.subplots(1, 3)
    left.plot(list(values[_SPEED]), list(values[_SPEED].values()), marker=".", color="tab:blue")
    left.set_ylabel("frames per second")
    for name, label in ((_COMPUTE, "computing"), (_WAIT, "waiting for data")):
        middle.plot(list(values[name]), [100 * v for v in values[name].values()], marker=".", label=label)
    middle.set_ylabel("% of the time")
    middle.set_ylim(-3, 103)
    middle.legend(fontsize="small")
    right.plot(list(values[_MEMORY]), [v / 2**20 for v in values[_MEMORY].values()], marker=".", color="tab:green")
    right.set_ylabel("memory, MiB")
    for panel in (left, middle, right):
        panel.set_xlabel("epoch")
        whole_epochs(panel.xaxis)
        panel.grid(alpha=0.3)
        if panel is not middle:
            panel.set_ylim(bottom=0)
    note = "The first epoch contains the time to trace and compile the step."
    return Section("Speed and memory", figure(Picture(drawn).svg(), note))


def settings(run: Run) -> Section:
    """Return the settings with which the run was trained."""
    given: Mapping[str, Any] = run.facts.get("settings", {})
    rows = [(name, code(shortened(repr(value), 600))) for name, value in sorted(given.items())]
    body = paragraph("Source: %s" % run.source) + wide(table(("setting", "value"), rows))
    return Section(
        "Settings", body if rows else paragraph("Unknown: there is neither a config nor a record of the run.")
    )


def environment(run: Run) -> Section:
    """Return versions and machine, and the command."""
    facts: dict[str, Any] = dict(run.facts.get("environment", {}))
    if run.facts.get("command"):
        facts["command"] = code(" ".join(map(str, run.facts["command"])))
    status = run.status
    for name in ("world_size", "num_epochs", "global_step"):
        if name in status:
            facts[name.replace("_", " ")] = status[name]
    if isinstance(status.get("ended"), dict):
        facts["ended"] = status["ended"].get("reason", "?")
    rows = list(facts.items())
    return Section("Environment", wide(table((), rows)) if rows else paragraph("Unknown."))
