"""A picture of results: a group of bars for each system, a bar for each held-out set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib import pyplot


def draw_bars(
    path: str, results: Mapping[str, Mapping[str, float]], sets: Iterable[str], size: tuple[float, float], **axis: Any
) -> None:
    """Draw results as horizontal bars with their values.

    :param results: system -> held-out set -> value
    :param sets: those to draw
    :param size: of the picture, in inches
    :param axis: of the values: ``xlabel``, ``xlim``
    """
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    for shift, name in enumerate(sets):
        places = np.arange(len(results)) + 0.4 * shift - 0.2
        bars = axes.barh(places, [of_sets[name] for of_sets in results.values()], 0.38, label="new %s" % name)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axes.set_yticks(range(len(results)), list(results), fontsize=8)
    axes.invert_yaxis()
    axes.set(**axis)
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
