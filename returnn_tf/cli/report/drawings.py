"""Pictures of single sequences and of confusions, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.monitoring.pictures import Picture, new_figure
from returnn_tf.engine.transcripts.transcript import Piece

_MOST_NAMES = 60  # more names on an axis can't be read
_MOST_SMALL_NAMES = 24  # the same in small drawings
_MOST_COLUMNS = 4  # of small drawings
_MOST_FRAMES = 1200  # of a spectrogram
_POINTS = 900  # the size of a character that would be as wide as a spectrogram
_SMALLEST = 4  # size of a character that can be read
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


class WordRow(NamedTuple):
    """Words or labels below a spectrogram.

    :param pieces: those without times are not drawn
    """

    name: str
    pieces: Sequence[Piece]


def draw_words(features: NDArray[Any], rows: Sequence[WordRow], duration: float, unit: str, title: str) -> str:
    """Draw words with their times below a spectrogram; the colour is their confidence, grey if it is unknown.

    :param features: [frames, features]
    :param duration: of all frames, in ``unit``
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = colormaps["RdYlGn"]
    figure = new_figure(9.5, 1.9 + 0.3 * len(rows))
    spectrum, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.5, 0.3 * len(rows)]})
    pooled = _pooled(features)
    low, high = np.percentile(pooled, [2, 99])
    spectrum.imshow(
        pooled.T, aspect="auto", origin="lower", cmap="magma", vmin=low, vmax=max(high, low + 1e-6),
        interpolation="nearest", extent=(0, duration, -0.5, features.shape[1] - 0.5),
    )  # fmt: skip
    spectrum.set_ylabel("feature")
    for height, row in enumerate(reversed(rows)):
        for piece in row.pieces:
            if piece.start is None or piece.end is None:
                continue
            face = "0.85" if piece.confidence is None else colours(piece.confidence)
            width = piece.end - piece.start
            below.barh(height, width, left=piece.start, height=0.9, color=face, edgecolor="0.3", linewidth=0.5)
            size = min(_POINTS * width / duration / max(len(piece.text), 1), 8)
            if size >= _SMALLEST:  # else it would run into its neighbours
                text = piece.start + width / 2, height, _plain(piece.text)
                below.text(*text, ha="center", va="center", fontsize=size, clip_on=True)
    for piece in rows[0].pieces:
        if piece.start is not None:
            spectrum.axvline(piece.start, color="white", linewidth=0.6, alpha=0.7)
    below.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], fontsize=8)
    below.set_xlim(0, duration)
    below.set_ylim(-0.55, len(rows) - 0.45)
    below.set_xlabel(unit)
    if any(piece.confidence is not None for row in rows for piece in row.pieces):
        scale = ScalarMappable(Normalize(0, 1), colours)
        figure.colorbar(scale, ax=[spectrum, below], pad=0.01, label="confidence")
    spectrum.set_title(_plain(title), fontsize="medium", loc="left")
    return Picture(figure).svg()


def _pooled(features: NDArray[Any]) -> NDArray[Any]:
    """Return means of neighbouring frames, so that there are at most `_MOST_FRAMES`."""
    block = max(-(-len(features) // _MOST_FRAMES), 1)
    starts = np.arange(0, len(features), block)
    sizes = np.diff([*starts, len(features)])
    means: NDArray[Any] = np.add.reduceat(features, starts, axis=0) / sizes[:, None]
    return means


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
