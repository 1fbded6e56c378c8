"""Scores, errors and learning rates over the epochs, of one run or of several in the same panels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingDataError, SettingError, did_you_mean
from returnn_tf.engine.learning_rate.file import EpochData, scores_of
from returnn_tf.engine.learning_rate.planned import planned_rates
from returnn_tf.engine.monitoring.pictures import Picture, new_figure, whole_epochs

Epochs = Mapping[int, EpochData]

# one panel each, in this order; other names share a further panel
_KINDS = ("score", "error")
_FIRST = {"train": 0, "dev": 1, "eval": 2}
_LINES = ("-", "--", ":", "-.")
_COLORS = 10
_MOST_IN_LEGEND = 8
_ROWS_OF_LEGEND = 12
_WIDTH_OF_COLUMN = 1.6  # inches
#: Values that differ by more than this factor are drawn on a logarithmic axis.
_WIDE = 8.0
#: A linear axis shows the second half of the epochs if that spans less than this share of all values.
_FLAT = 0.35


def draw_curves(
    runs: Mapping[str, Epochs],
    title: str = "",
    *,
    keys: Sequence[str] = (),
    log: Optional[bool] = None,
    smooth: int = 1,
    width: float = 8.0,
    height: float = 2.6,
) -> Picture:
    """Draw a panel of scores, one of errors, and the learning rates.

    One run: a colour for each dataset, a line style for each loss. Several: a colour for each run, a line style for
    each score.

    :param runs: name of the run -> its epochs
    :param keys: the scores to draw; default: all
    :param log: logarithmic axes of scores; default: where values are positive and differ by more than a factor of 8. A
        linear axis is by default cut such that the late epochs can be told apart
    :param smooth: draw the mean of this number of epochs, over the values themselves in a light colour
    :param width: of the picture in inches
    :param height: of a panel in inches
    :raises DataError: there is nothing to draw
    :raises ConfigError: matplotlib is missing, or there is no score of a name
    """
    groups = score_groups(runs.values())
    if not groups:
        raise SettingDataError("%s: no scores to draw" % (title or "learning-rate file"))
    groups = _selected(groups, keys)
    columns = _legend_columns(max(map(len, groups.values())) * len(runs))
    figure = new_figure(width + _WIDTH_OF_COLUMN * max(columns - 1, 0), height * (len(groups) + 1))
    from matplotlib import colormaps

    colors = colormaps["tab10"]
    panels = figure.subplots(len(groups) + 1, 1, sharex=True)
    names = [dataset_and_loss(key) for shown in groups.values() for key in shown]
    datasets = sorted({dataset for dataset, _ in names}, key=lambda name: (_FIRST.get(name, 9), name))
    losses = sorted({loss for _, loss in names})
    for panel, (kind, shown) in zip(panels, groups.items()):
        for number, (name, epochs) in enumerate(runs.items()):
            for key in shown:
                dataset, loss = dataset_and_loss(key)
                if len(runs) == 1:
                    place, line, label = datasets.index(dataset), losses.index(loss), key
                    if len(losses) > len(_LINES):  # there are more colours
                        place, line = line, line // _COLORS + place
                else:
                    place, line, label = number, shown.index(key), "%s %s" % (name, key)
                scored = [e for e in sorted(epochs) if isinstance(epochs[e].error.get(key), (int, float))]
                if scored:
                    values = [epochs[e].error[key] for e in scored]
                    style, color = _LINES[line % len(_LINES)], colors(place % _COLORS)
                    if smooth > 1:
                        panel.plot(scored, values, style, color=color, alpha=0.3)
                    panel.plot(scored, _means(values, smooth), style, marker=".", color=color, label=label)
        panel.set_ylabel(kind)
        _scale_scores(panel, list(runs.values()), shown, log)
        _legend(panel)
    _draw_rates(panels[-1], runs, colors)
    for panel in panels:
        panel.grid(alpha=0.3)
    whole_epochs(panels[-1].xaxis)
    if title:
        figure.suptitle(title)
    return Picture(figure)


def _legend_columns(entries: int) -> int:
    """Return the number of columns of the legend beside a panel; a higher legend would squeeze the curves."""
    return -(-entries // _ROWS_OF_LEGEND)


def _legend(panel: Any) -> None:
    handles = panel.get_legend_handles_labels()[0]
    if len(handles) > _MOST_IN_LEGEND:
        panel.legend(
            fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=_legend_columns(len(handles))
        )
    elif handles:
        panel.legend(fontsize="small")


def draw_planned_rates(config: Config, title: str) -> Picture:
    """Draw the learning rates that a config plans, over the steps or epochs.

    :raises ConfigError: matplotlib is missing, or the rates are not known before
    """
    unit, places, rates = planned_rates(config)
    figure = new_figure(8.0, 2.6)
    panel = figure.subplots(1, 1)
    if unit == "epoch":
        panel.step(places, rates, where="mid", color="black", marker=".")
        whole_epochs(panel.xaxis)
    else:
        panel.plot(places, rates, color="black")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    _plain_numbers(panel)
    panel.set_xlabel(unit)
    panel.set_ylabel("learning rate")
    panel.set_title(title, fontsize="medium")
    return Picture(figure)


def _draw_rates(panel: Any, runs: Mapping[str, Epochs], colors: Any) -> None:
    rates: list[float] = []
    for number, (name, epochs) in enumerate(runs.items()):
        trained = [e for e in sorted(epochs) if len(runs) == 1 or epochs[e].error]
        own = [epochs[e].error.get(":meta:effective_learning_rate", epochs[e].learning_rate) for e in trained]
        color = "black" if len(runs) == 1 else colors(number % _COLORS)
        panel.step(trained, own, where="mid", color=color, marker=".", label=name)
        rates += own
    if rates and min(rates) > 0 and max(rates) > _WIDE * min(rates):
        _logarithmic(panel, min(rates), max(rates))
    else:
        panel.set_ylim(bottom=0)
        _plain_numbers(panel)
    if len(runs) > 1:
        _legend(panel)
    panel.set_ylabel("learning rate")
    panel.set_xlabel("epoch")


def _selected(groups: Mapping[str, Sequence[str]], keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the groups with only some of the scores."""
    known = [key for shown in groups.values() for key in shown]
    for key in keys:
        if key not in known:
            raise SettingError("there is no score %r. %s" % (key, did_you_mean(key, known)))
    selected = {kind: [key for key in shown if key in keys or not keys] for kind, shown in groups.items()}
    return {kind: shown for kind, shown in selected.items() if shown}


def _means(values: Sequence[float], size: int) -> list[float]:
    """Return the mean of each value and the ones before it, ``size`` in all; fewer at the beginning."""
    return [sum(values[max(0, i + 1 - size) : i + 1]) / min(i + 1, size) for i in range(len(values))]


def _scale_scores(panel: Any, runs: Sequence[Epochs], keys: Sequence[str], log: Optional[bool]) -> None:
    """Choose the vertical axis of a panel of scores."""
    curves = [
        [v for v in (epochs[e].error.get(key) for e in sorted(epochs)) if isinstance(v, (int, float))]
        for epochs in runs
        for key in keys
    ]
    finite = [[v for v in values if np.isfinite(v)] for values in curves]
    every = [v for values in finite for v in values]
    if not every:
        return
    low, high = min(every), max(every)
    if log or (log is None and low > 0 and high > _WIDE * low):
        above = [v for v in every if v > 0]
        if above:
            _logarithmic(panel, min(above), max(above))
            return
    _plain_numbers(panel)
    late = [v for values in finite for v in values[len(values) // 2 :]]
    span = max(late) - min(late)
    if log is None and 0 < span < _FLAT * (high - low):
        bottom, top = min(late) - 0.08 * span, max(late) + 0.08 * span
        panel.set_ylim(bottom, top)
        if high > top:
            panel.text(
                0.01, 0.95, "the first epochs are above", transform=panel.transAxes, va="top", fontsize="x-small"
            )


def _logarithmic(panel: Any, low: float, high: float) -> None:
    """Make the vertical axis logarithmic, with ticks that are read as numbers, also within one power of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    panel.set_yscale("log")
    decades = np.log10(high / low)
    steps = (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    panel.yaxis.set_major_locator(MaxNLocator(5) if decades < 0.7 else LogLocator(subs=steps, numticks=12))
    panel.yaxis.set_minor_locator(NullLocator())
    _plain_numbers(panel)


def _plain_numbers(panel: Any) -> None:
    """Label the vertical axis with whole numbers as "0.0005", none of them relative to an offset."""
    from matplotlib.ticker import FuncFormatter

    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "%.6g" % value))


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
