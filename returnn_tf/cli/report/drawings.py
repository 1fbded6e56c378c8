"""Pictures of single sequences and of confusions, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.monitoring.pictures import Picture, new_figure

_MOST_NAMES = 60  # more names on an axis can't be read
_MOST_SMALL_NAMES = 24  # the same in small drawings
_MOST_COLUMNS = 4  # of small drawings
_MOST_NUMBERS = 14  # classes of a matrix with numbers in it


class Map(NamedTuple):
    """Attention weights to draw.

    :param weights: [rows, columns]
    :param size: (queries, keys), as many as rows and columns or more
    :param queries: their names
    :param keys: the same
    """

    title: str
    weights: NDArray[Any]
    size: tuple[int, int]
    queries: Optional[Sequence[str]] = None
    keys: Optional[Sequence[str]] = None


def draw_attention(drawn: Map) -> str:
    """Draw the attention weights of a layer."""
    figure = new_figure(9.5, min(max(1.6, 0.22 * drawn.size[0] + 1.0), 8.0))
    panel = figure.subplots()
    figure.colorbar(_show(panel, drawn), ax=panel, pad=0.01)
    panel.set_xlabel("frame" if drawn.keys is None else "")
    panel.set_ylabel("step" if drawn.queries is None else "")
    _names(panel.set_yticks, drawn.queries, drawn.size[0])
    _names(panel.set_xticks, drawn.keys, drawn.size[1], rotation=90)
    panel.set_title(_plain(drawn.title), fontsize="medium", loc="left")
    return Picture(figure).svg()


def draw_maps(maps: Sequence[Map]) -> str:
    """Draw the attention weights of several layers side by side."""
    columns = min(len(maps), _MOST_COLUMNS)
    rows = -(-len(maps) // columns)
    width = 9.5 / max(columns, 3)
    shape = max(min(max(drawn.size[0] / drawn.size[1], 0.4), 1.0) for drawn in maps)
    figure = new_figure(width * columns, rows * (width * shape + 0.35))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, drawn in zip(panels, maps):
        _show(panel, drawn, vmax=scale_of(drawn.weights))
        panel.tick_params(labelsize=6)
        if max(drawn.size) <= _MOST_SMALL_NAMES:
            _names(panel.set_yticks, drawn.queries, drawn.size[0], fontsize=5)
            _names(panel.set_xticks, drawn.keys, drawn.size[1], fontsize=5, rotation=90)
        panel.set_title(_fitting(drawn.title, round(18 * width)), fontsize=7, loc="left")
    for panel in panels[len(maps) :]:
        panel.set_axis_off()
    return Picture(figure).svg()


def scale_of(weights: NDArray[Any]) -> float:
    """Return the weight that is drawn black, as larger ones are: the median of the highest weights of the rows.

    The highest one of all would leave the rest white where a few queries see few keys.
    """
    return max(float(np.median(weights.max(axis=1))), 1e-9)


def _show(panel: Any, drawn: Map, **options: Any) -> Any:
    """Draw weights such that the axes count queries and keys."""
    extent = (-0.5, drawn.size[1] - 0.5, drawn.size[0] - 0.5, -0.5)
    options.update(aspect="auto", interpolation="nearest", cmap="Greys", vmin=0.0, extent=extent)
    image = panel.imshow(drawn.weights, **options)
    _frames(panel.xaxis)
    _frames(panel.yaxis)
    return image


def _fitting(title: str, most: int) -> str:
    """Return a title without what is beyond a number of characters; the end of a path tells more than its beginning."""
    return _plain(title if len(title) <= most else "..." + title[3 - most :])


def _plain(text: str) -> str:
    """Return a text in which matplotlib sees no formulas."""
    return text.replace("$", r"\$")


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
    _frames(panel.xaxis)
    panel.set_xlabel("frame")
    panel.set_title(_plain(title), fontsize="medium", loc="left")
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


def _frames(axis: Any) -> None:
    """Restrict the ticks of an axis to whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _names(set_ticks: Any, names: Optional[Sequence[str]], count: int, *, fontsize: int = 7, **options: Any) -> None:
    if names is not None and count <= _MOST_NAMES:
        texts = [_plain(name) for name in names[:count]]
        set_ticks(range(len(texts)), texts, fontsize=fontsize, **options)


def _short(count: int) -> str:
    return str(count) if count < 10000 else "%.0fk" % (count / 1000)
