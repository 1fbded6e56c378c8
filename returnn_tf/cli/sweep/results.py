"""What the trials of a sweep have shown: the best one, which parameters matter, and a picture of both."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from returnn_tf.cli.sweep.description import Sweep, command_of, values_text
from returnn_tf.cli.sweep.study import Study, overrides_of, why_failed
from returnn_tf.config.errors import ConfigError
from returnn_tf.engine.monitoring.pictures import Picture, new_figure, whole_epochs
from returnn_tf.logging.text import counted, printable

_LEAST_FOR_IMPORTANCE = 4  # completed trials
_GOOD = 5  # trials that count as good ones, at least
_MOST_PANELS = 6
_COLUMNS = 3
_WIDE = 8.0  # values that differ by more than this factor are drawn on a logarithmic axis
_LISTED = 5
_COLORS = {"COMPLETE": "tab:blue", "PRUNED": "tab:gray"}
_MARKERS = {"COMPLETE": "o", "PRUNED": "x"}


def text(sweep: Sweep, study: Study) -> str:
    """Return the results for people: how many trials, the best ones, the importance of the parameters."""
    trials = study.trials()
    names = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running or interrupted"}
    states = [trial.state.name for trial in trials]
    counts = ["%d %s" % (states.count(state), name) for state, name in names.items() if state in states]
    lines = [
        "",
        "%s of %d: %s" % (counted(len(trials), "trial"), sweep.options.trials, ", ".join(counts) or "none yet"),
    ]
    best = _ranked(trials)
    for trial in best[:_LISTED]:
        lines.append("  %s %.6g  trial %d: %s" % (
            sweep.options.metric, trial.value, trial.number, values_text(overrides_of(trial)),
        ))  # fmt: skip
    if best:
        lines.append("The best one: %s" % command_of(sweep, best[0].number))
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    lines += ["failed: trial %d: %s" % (trial.number, why_failed(trial)) for trial in failed[:_LISTED]]
    found = importance(study)
    if found:
        lines.append("Importance: " + ", ".join("%s %.0f%%" % (name, 100 * share) for name, share in found.items()))
    return "\n".join(printable(line) for line in lines)


def _ranked(trials: Sequence[Any]) -> list[Any]:
    """Return the completed trials, the best first."""
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    return sorted(done, key=lambda trial: (trial.value, trial.number))


def importance(study: Study) -> dict[str, float]:
    """Return parameter -> share of what decides whether a trial is among the good ones, highest first (PED-ANOVA).

    Empty with few trials, or if all have the same metric.
    """
    import optuna

    done = _ranked(study.trials())
    if len(done) < _LEAST_FOR_IMPORTANCE or done[0].value == done[-1].value:
        return {}
    # its estimates need some good trials: a tenth of a short sweep is one or two
    quantile = min(max(0.1, _GOOD / len(done)), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on parameters that not all trials have, and on few trials
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        found = optuna.importance.get_param_importances(study.study, evaluator=evaluator)
    return {name: share for name, share in found.items() if math.isfinite(share)}


def draw(sweep: Sweep, study: Study, path: str) -> None:
    """Draw the metric by trial, the importance of the parameters, and the metric by value of each; print the path.

    Without matplotlib, or before the first result, print why there is no picture.

    :raises ConfigError: the file can't be written
    """
    shown = [trial for trial in study.trials() if _value(trial) is not None]
    if not shown:
        print("no picture: no trial has a %s yet" % sweep.options.metric)
        return
    try:
        new_figure(1.0, 1.0)
    except ConfigError as exc:
        print("no picture: %s" % exc)
        return
    picture(shown, sweep.options.metric, importance(study)).save(path)
    print("Picture: %s" % path)


def _value(trial: Any) -> Any:
    """Return the result of a trial, of one that was pruned the lowest metric until then; None without any."""
    if trial.state.name not in _COLORS:
        return None
    return trial.value if trial.state.name == "COMPLETE" else min(trial.intermediate_values.values(), default=None)


def picture(trials: Sequence[Any], metric: str, shares: Mapping[str, float]) -> Picture:
    """Return the picture of some trials.

    :param trials: completed and pruned ones
    :param shares: importance of parameters
    """
    names = list(dict.fromkeys([*shares, *(name for trial in trials for name in trial.params)]))[:_MOST_PANELS]
    rows = -(-len(names) // _COLUMNS)
    figure = new_figure(9.0, 2.8 * (1 + rows))
    grid = figure.add_gridspec(1 + rows, _COLUMNS)
    history = figure.add_subplot(grid[0, : _COLUMNS - 1] if shares else grid[0, :])
    _draw_history(history, trials, metric)
    if shares:
        _draw_importance(figure.add_subplot(grid[0, _COLUMNS - 1]), shares)
    for number, name in enumerate(names):
        panel = figure.add_subplot(grid[1 + number // _COLUMNS, number % _COLUMNS])
        _draw_values(panel, trials, name, metric if number % _COLUMNS == 0 else "")
    return Picture(figure)


def _draw_history(panel: Any, trials: Sequence[Any], metric: str) -> None:
    for state, label in (("COMPLETE", "completed"), ("PRUNED", "pruned")):
        own = [trial for trial in trials if trial.state.name == state]
        _dots(panel, [trial.number for trial in own], own, state, label)
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    lowest = [min(trial.value for trial in done[: index + 1]) for index in range(len(done))]
    if done:
        panel.step([trial.number for trial in done], lowest, where="post", color="tab:orange", label="best so far")
    _scale(panel, trials)
    whole_epochs(panel.xaxis)
    panel.set_xlabel("trial")
    panel.set_ylabel(metric)
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")


def _draw_importance(panel: Any, shares: Mapping[str, float]) -> None:
    names = list(shares)[:_MOST_PANELS][::-1]
    panel.barh(range(len(names)), [100 * shares[name] for name in names], color="tab:blue")
    panel.set_yticks(range(len(names)), [_short(name) for name in names], fontsize="small")
    panel.set_xlabel("importance in %")
    panel.set_xlim(left=0)


def _draw_values(panel: Any, trials: Sequence[Any], name: str, metric: str) -> None:
    own = [trial for trial in trials if name in trial.params]
    values = [trial.params[name] for trial in own]
    distribution = own[0].distributions[name]
    if hasattr(distribution, "choices"):
        choices = list(distribution.choices)
        values = [choices.index(value) for value in values]
        panel.set_xticks(range(len(choices)), [_short(str(choice)) for choice in choices], fontsize="small")
        panel.set_xlim(-0.5, len(choices) - 0.5)
    elif getattr(distribution, "log", False):
        panel.set_xscale("log")
    for state in _COLORS:
        pairs = [(value, trial) for value, trial in zip(values, own) if trial.state.name == state]
        _dots(panel, [value for value, _ in pairs], [trial for _, trial in pairs], state, "")
    _scale(panel, trials)
    panel.set_xlabel(name)
    panel.set_ylabel(metric)
    panel.grid(alpha=0.3)


def _dots(panel: Any, places: Sequence[Any], trials: Sequence[Any], state: str, label: str) -> None:
    if trials:
        values = [_value(trial) for trial in trials]
        panel.scatter(places, values, s=22, c=_COLORS[state], marker=_MARKERS[state], label=label)


def _scale(panel: Any, trials: Sequence[Any]) -> None:
    """Choose a logarithmic axis where values differ by much; else trials that diverged leave no room for the others."""
    values = [_value(trial) for trial in trials]
    if min(values) > 0 and max(values) > _WIDE * min(values):
        panel.set_yscale("log")


def _short(name: str) -> str:
    return name if len(name) <= 16 else "..." + name[-13:]
