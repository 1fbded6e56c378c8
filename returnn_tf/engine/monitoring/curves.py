"""Scores, errors and learning rates over the epochs, of one run or of several in the same panels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from returnn_tf.config import DataError
from returnn_tf.engine.learning_rate.file import EpochData, scores_of
from returnn_tf.engine.monitoring.pictures import Picture, new_figure, whole_epochs

Epochs = Mapping[int, EpochData]

# one panel each, in this order; other names share a further panel
_KINDS = ("score", "error")
_FIRST = {"train": 0, "dev": 1, "eval": 2}
_LINES = ("-", "--", ":", "-.")
_MOST_IN_LEGEND = 8


def draw_curves(runs: Mapping[str, Epochs], title: str = "", *, width: float = 8.0, height: float = 2.6) -> Picture:
    """Draw a panel of scores, one of errors, and the learning rates.

    One run: a colour for each dataset, a line style for each loss. Several: a colour for each run, a line style for
    each score.

    :param runs: name of the run -> its epochs
    :param width: of the picture in inches
    :param height: of a panel in inches
    :raises DataError: there is nothing to draw
    :raises ConfigError: matplotlib is missing
    """
    groups = score_groups(runs.values())
    if not groups:
        raise DataError("%s: no scores to draw" % (title or "learning-rate file"))
    figure = new_figure(width, height * (len(groups) + 1))
    from matplotlib import colormaps

    colors = colormaps["tab10"]
    panels = figure.subplots(len(groups) + 1, 1, sharex=True)
    names = [dataset_and_loss(key) for keys in groups.values() for key in keys]
    datasets = sorted({dataset for dataset, _ in names}, key=lambda name: (_FIRST.get(name, 9), name))
    losses = sorted({loss for _, loss in names})
    for panel, (kind, keys) in zip(panels, groups.items()):
        for number, (name, epochs) in enumerate(runs.items()):
            for key in keys:
                dataset, loss = dataset_and_loss(key)
                if len(runs) == 1:
                    place, line, label = datasets.index(dataset), losses.index(loss), key
                else:
                    place, line, label = number, keys.index(key), "%s %s" % (name, key)
                scored = [e for e in sorted(epochs) if isinstance(epochs[e].error.get(key), (int, float))]
                if scored:
                    values = [epochs[e].error[key] for e in scored]
                    style = _LINES[line % len(_LINES)]
                    panel.plot(scored, values, style, marker=".", color=colors(place % 10), label=label)
        panel.set_ylabel(kind)
        _legend(panel)
    _draw_rates(panels[-1], runs, colors)
    for panel in panels:
        panel.grid(alpha=0.3)
    whole_epochs(panels[-1].xaxis)
    if title:
        figure.suptitle(title)
    return Picture(figure)


def _legend(panel: Any) -> None:
    handles = panel.get_legend_handles_labels()[0]
    if len(handles) > _MOST_IN_LEGEND:
        panel.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif handles:
        panel.legend(fontsize="small")


def _draw_rates(panel: Any, runs: Mapping[str, Epochs], colors: Any) -> None:
    rates: list[float] = []
    for number, (name, epochs) in enumerate(runs.items()):
        trained = [e for e in sorted(epochs) if len(runs) == 1 or epochs[e].error]
        own = [epochs[e].learning_rate for e in trained]
        color = "black" if len(runs) == 1 else colors(number % 10)
        panel.step(trained, own, where="mid", color=color, marker=".", label=name)
        rates += own
    if rates and min(rates) > 0 and max(rates) > 5 * min(rates):
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    if len(runs) > 1:
        _legend(panel)
    panel.set_ylabel("learning rate")
    panel.set_xlabel("epoch")


def score_groups(runs: Iterable[Epochs]) -> dict[str, list[str]]:
    """Return the names of all scores, by panel."""
    names = sorted({key for epochs in runs for data in epochs.values() for key in scores_of(data.error)}, key=_order)
    groups = {kind: [key for key in names if ("_" + kind) in key] for kind in _KINDS}
    groups["other"] = [key for key in names if not any(("_" + kind) in key for kind in _KINDS)]
    return {kind: keys for kind, keys in groups.items() if keys}


def _order(key: str) -> tuple[int, str, str]:
    dataset, loss = dataset_and_loss(key)
    return _FIRST.get(dataset, 9), dataset, loss


def dataset_and_loss(key: str) -> tuple[str, str]:
    """Split ``dev_score_ctc`` into ``dev`` and ``ctc``."""
    match = re.match("(.*?)_(?:%s)_?(.*)$" % "|".join(_KINDS), key)
    return (match.group(1), match.group(2)) if match else (key, "")
