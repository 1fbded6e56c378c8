"""``returnn-tf plot LEARNING_RATE_FILE OUT.png``: a plot of scores and learning rates."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from returnn_tf.cli.commands import register_command
from returnn_tf.config import ConfigError, DataError
from returnn_tf.engine.learning_rate.file import EpochData, read_file, scores_of

# one panel each, in this order; other names share a further panel
_KINDS = ("score", "error")
_FIRST = {"train": 0, "dev": 1, "eval": 2}
_LINES = ("-", "--", ":", "-.")


@register_command(
    "plot",
    "LEARNING_RATE_FILE OUT.png",
    "plot scores and learning rates",
    details="The suffix of the output selects the format: .png, .pdf, .svg.",
)
def run(args: list[str]) -> int:
    """Write the plot.

    :param args: the learning-rate file, and the file to write (.png, .pdf, .svg)
    """
    if len(args) != 2 or args[0].startswith("-"):
        raise ConfigError("plot: expected two files: returnn-tf plot LEARNING_RATE_FILE OUT.png")
    source, target = args
    draw(read_file(source), target, title=source)
    print("wrote", target)
    return 0


def draw(epochs: Mapping[int, EpochData], path: str, title: str = "") -> None:
    """Draw a panel of scores, one of errors, and the learning rate.

    :param epochs: as returned by `returnn_tf.engine.learning_rate.file.read_file`
    :param path: file to write; the suffix selects the format
    :raises DataError: there is nothing to draw
    :raises ConfigError: matplotlib is missing, the format is unknown, or the file can't be written
    """
    groups = _groups(epochs)
    if not groups:
        raise DataError("%s: no scores to draw" % (title or "learning-rate file"))
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("drawing needs matplotlib: pip install 'returnn-tf[plot]'") from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 2.6 * (len(groups) + 1)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    suffix = os.path.splitext(path)[1][1:].lower()
    if suffix not in canvas.get_supported_filetypes():
        known = ", ".join(sorted(canvas.get_supported_filetypes()))
        raise ConfigError("plot: %r: unknown format; known suffixes: %s" % (path, known))
    panels = figure.subplots(len(groups) + 1, 1, sharex=True)
    colors = matplotlib.colormaps["tab10"]
    names = [_dataset_and_loss(key) for keys in groups.values() for key in keys]
    datasets = sorted({dataset for dataset, _ in names}, key=lambda name: (_FIRST.get(name, 9), name))
    losses = sorted({loss for _, loss in names})
    for panel, (kind, keys) in zip(panels, groups.items()):
        for key in keys:
            dataset, loss = _dataset_and_loss(key)
            scored = [e for e in sorted(epochs) if key in epochs[e].error]
            panel.plot(
                scored,
                [epochs[e].error[key] for e in scored],
                _LINES[losses.index(loss) % len(_LINES)],
                marker=".",
                color=colors(datasets.index(dataset) % 10),
                label=key,
            )
        panel.set_ylabel(kind)
        panel.legend(fontsize="small")
    _draw_rates(panels[-1], epochs)
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title)
    try:
        figure.savefig(path)
    except OSError as exc:
        raise ConfigError("plot: %r can't be written: %s" % (path, exc.strerror or exc)) from None


def _draw_rates(panel: Any, epochs: Mapping[int, EpochData]) -> None:
    rates = [epochs[e].learning_rate for e in sorted(epochs)]
    panel.step(sorted(epochs), rates, where="mid", color="black", marker=".")
    if min(rates) > 0 and max(rates) > 5 * min(rates):
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    panel.set_ylabel("learning rate")
    panel.set_xlabel("epoch")


def _groups(epochs: Mapping[int, EpochData]) -> dict[str, list[str]]:
    """Return the names of all scores, by panel."""
    names = sorted({key for data in epochs.values() for key in scores_of(data.error)})
    groups = {kind: [key for key in names if ("_" + kind) in key] for kind in _KINDS}
    groups["other"] = [key for key in names if not any(("_" + kind) in key for kind in _KINDS)]
    return {kind: keys for kind, keys in groups.items() if keys}


def _dataset_and_loss(key: str) -> tuple[str, str]:
    """Split ``dev_score_ctc`` into ``dev`` and ``ctc``: one colour per dataset, one line style per loss."""
    match = re.match("(.*?)_(?:%s)_?(.*)$" % "|".join(_KINDS), key)
    return (match.group(1), match.group(2)) if match else (key, "")
