"""Pictures of single sequences and of confusions, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.monitoring.pictures import Picture, new_figure

_MOST_NAMES = 60  # more names on an axis can't be read
_MOST_NUMBERS = 14  # classes of a matrix with numbers in it


def draw_attention(weights: NDArray[Any], labels: Optional[Sequence[str]], title: str) -> str:
    """Draw attention weights.

    :param weights: [labels, frames]
    :param labels: names of the rows
    """
    height = min(max(1.6, 0.22 * len(weights) + 1.0), 8.0)
    figure = new_figure(9.5, height)
    panel = figure.subplots()
    image = panel.imshow(weights, aspect="auto", interpolation="nearest", cmap="Greys", vmin=0.0)
    figure.colorbar(image, ax=panel, pad=0.01)
    _frames(panel)
    panel.set_ylabel("step")
    _names(panel.set_yticks, labels, len(weights))
    panel.set_title(title, fontsize="medium", loc="left")
    return Picture(figure).svg()


def draw_ctc(probs: NDArray[Any], path: NDArray[Any], names: Sequence[str], blank: int, title: str) -> str:
    """Draw the probabilities of the labels over time, and the best alignment of the reference.

    :param probs: [frames, classes]
    :param path: class of each frame in the alignment [frames]; empty if the reference does not fit
    :param names: of the classes, the blank included
    """
    wanted = {blank, *map(int, path), *map(int, probs.argmax(axis=1))}
    order = sorted(wanted, key=lambda c: (c != blank, c))[:_MOST_NAMES]
    place = {c: row for row, c in enumerate(order)}
    figure = new_figure(9.5, min(max(1.8, 0.2 * len(order) + 1.0), 8.0))
    panel = figure.subplots()
    image = panel.imshow(
        probs[:, order].T, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0.0, vmax=1.0, origin="lower"
    )
    figure.colorbar(image, ax=panel, pad=0.01)
    shown = [(frame, place[int(c)]) for frame, c in enumerate(path) if int(c) in place]
    if shown:
        frames, rows = zip(*shown)
        panel.plot(frames, rows, ".", color="tab:red", markersize=4)
        title += "; red: best alignment of the reference"
    _names(panel.set_yticks, [names[c] for c in order], len(order))
    _frames(panel)
    panel.set_title(title, fontsize="medium", loc="left")
    return Picture(figure).svg()


def draw_confusion(counts: NDArray[Any], names: Sequence[str]) -> str:
    """Draw how often each class was taken for which; a row is the reference, shares of its row are the colour.

    :param counts: [reference, output]
    """
    size = len(counts)
    side = min(max(2.8, 0.42 * size + 1.2), 9.0)
    figure = new_figure(side + 0.8, side)
    panel = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = panel.imshow(shares, interpolation="nearest", cmap="Blues", vmin=0.0, vmax=1.0)
    figure.colorbar(image, ax=panel, pad=0.01, shrink=0.8)
    if size <= _MOST_NUMBERS:
        for row in range(size):
            for column in range(size):
                color = "white" if shares[row, column] > 0.5 else "black"
                if counts[row, column]:
                    text = _short(int(counts[row, column]))
                    panel.text(column, row, text, ha="center", va="center", color=color, fontsize=7)
    _names(panel.set_xticks, names, size, rotation=90)
    _names(panel.set_yticks, names, size)
    panel.set_xlabel("output")
    panel.set_ylabel("reference")
    return Picture(figure).svg()


def _frames(panel: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("frame")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _names(set_ticks: Any, names: Optional[Sequence[str]], count: int, **options: Any) -> None:
    if names is not None and count <= _MOST_NAMES:
        texts = [name.replace("$", r"\$") for name in names[:count]]
        set_ticks(range(len(texts)), texts, fontsize=7, **options)


def _short(count: int) -> str:
    return str(count) if count < 10000 else "%.0fk" % (count / 1000)
