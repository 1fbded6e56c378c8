"""Tables and plots of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table with columns as wide as needed: the first aligned left, numbers right."""
    cells = [[str(value) for value in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: list[str]) -> str:
        padded = [row[0].ljust(widths[0]), *(value.rjust(width) for value, width in zip(row[1:], widths[1:]))]
        return "| %s |" % " | ".join(padded)

    rule = "|%s|" % "|".join("-" * (width + 1) + ("-" if i == 0 else ":") for i, width in enumerate(widths))
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def plot(
    path: str, names: Sequence[str], values: Mapping[str, Sequence[float]], label: str, limit: Optional[float] = None
) -> None:
    """Draw bars for each name side by side, one for each series.

    :param path: of the picture; its ending says which kind
    :param values: of each series, one for each name
    :param label: what they are
    :param limit: what was asked, a line across
    """
    import matplotlib  # only for who wants a picture

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(1.6 * len(names) + 2, 3.5), layout="constrained")
    width = 0.8 / len(values)
    for index, (series, heights) in enumerate(values.items()):
        places = [x + (index - (len(values) - 1) / 2) * width for x in range(len(names))]
        axes.bar_label(axes.bar(places, list(heights), width, label=series), fmt="%.2g", fontsize=8)
    if limit is not None:
        axes.axhline(limit, color="black", linestyle="--", linewidth=1, label="asked")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(label)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
