#!/usr/bin/env python3
"""Draws how a digit-line recogniser learned and what it reads.

    python draw.py out
    python draw.py out attention

The first reads out/learning_rates, out/heldout.hdf and out/forward.hdf, which the training and the task "forward" left
there, and writes out/learning_curve.png and out/recognised.png. With the name of another demo, it reads
out/NAME_learning_rates and out/NAME_search.py (out/NAME_forward.hdf where it did not search), and the pictures are
out/NAME_learning_curve.png and out/NAME_recognised.png.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from typing import Any

import decode
import matplotlib

matplotlib.use("Agg")  # needs no screen

from matplotlib import pyplot

from returnn_tf.engine.learning_rate.file import EpochData, read_file

NAMES = {"train": "training lines", "dev": "dev lines", "eval": "held-out lines"}
WRONG, RIGHT = "crimson", "black"


def series(epochs: dict[int, EpochData], key: str) -> tuple[list[int], list[float]]:
    """Return the epochs that have a value of this name, and the values."""
    known = [epoch for epoch in sorted(epochs) if key in epochs[epoch].error]
    return known, [epochs[epoch].error[key] for epoch in known]


def measures(epochs: dict[int, EpochData], kind: str) -> list[str]:
    """Return what follows "train_score" or "train_error" in the names: "", or "_" and the layer of a loss."""
    names = {name for data in epochs.values() for name in data.error if name.startswith("train_" + kind)}
    return sorted((name[len("train_" + kind) :] for name in names), reverse=True)


def draw_measures(axes: Any, epochs: dict[int, EpochData], kind: str, factor: float) -> None:
    """Draw a curve for each dataset and loss: a colour for the dataset, a line style for the loss."""
    several = len(measures(epochs, kind)) > 1
    for measure, style in zip(measures(epochs, kind), ("-", ":", "--", "-.")):
        for (name, label), color in zip(NAMES.items(), ("tab:blue", "tab:orange", "tab:green")):
            known, values = series(epochs, name + "_" + kind + measure)
            curve = {"color": color, "linestyle": style, "marker": "o", "markersize": 3}
            what = "%s, %s" % (label, measure[1:]) if several else label
            axes.plot(known, [factor * value for value in values], label=what, **curve)


def draw_learning_curve(epochs: dict[int, EpochData], path: str, title: str) -> None:
    """Draw label error rate, score and learning rate over the epochs.

    :param epochs: as the learning-rate file holds them
    :param path: picture to write
    :param title: what was trained
    """
    figure, (errors, scores, rates) = pyplot.subplots(
        3, 1, sharex=True, figsize=(7, 7.5), gridspec_kw={"height_ratios": [4, 3, 1.4]}, layout="constrained"
    )
    draw_measures(errors, epochs, "error", 100)
    draw_measures(scores, epochs, "score", 1)
    errors.set(ylabel="error rate (%)", yscale="log", title=title)
    errors.axhline(5, color="gray", linestyle=":", linewidth=1)
    errors.yaxis.set_major_formatter("{x:g}")
    errors.yaxis.set_minor_formatter("")
    errors.set_yticks([value for value in (0.5, 1, 2, 5, 10, 20, 50, 100) if errors.get_ylim()[0] <= value])
    errors.legend(fontsize=8)
    scores.set(ylabel="score per label", yscale="log")
    known = sorted(epochs)
    rates.step(known, [epochs[epoch].learning_rate for epoch in known], where="mid", color="black")
    rates.set(ylabel="learning rate", xlabel="epoch", ylim=(0, None))
    rates.xaxis.get_major_locator().set_params(integer=True)
    for axes in (errors, scores, rates):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def choose(recognised: Sequence[decode.Recognised], num_lines: int, num_wrong: int) -> list[decode.Recognised]:
    """Return the first lines and, to show mistakes too, at the end up to ``num_wrong`` lines with mistakes."""
    wrong = [line for line in recognised if line.num_errors][:num_wrong]
    tags = {line.tag for line in wrong}
    others = [line for line in recognised if line.tag not in tags]
    return others[: num_lines - len(wrong)] + wrong


def marked(text: Sequence[int], other: Sequence[int]) -> list[tuple[str, str]]:
    """Return the digits with their colours: red if they have no counterpart in ``other``."""
    blocks = difflib.SequenceMatcher(None, text, other, autojunk=False).get_matching_blocks()
    same = {position for block in blocks for position in range(block.a, block.a + block.size)}
    return [(str(digit), RIGHT if i in same else WRONG) for i, digit in enumerate(text)]


def write_digits(axes: Any, height: float, name: str, digits: Sequence[tuple[str, str]]) -> None:
    """Write digits beside the image of their line, each in its colour; ``height`` is in the axes, 0 .. 1."""
    axes.text(1.04, height, name, transform=axes.transAxes, fontsize=7, color="gray", va="center")
    for i, (digit, color) in enumerate(digits):
        place = {"transform": axes.transAxes, "va": "center", "family": "monospace"}
        axes.text(1.20 + 0.045 * i, height, digit, color=color, **place)


def draw_lines(recognised: Sequence[decode.Recognised], path: str, num_lines: int = 12, num_wrong: int = 4) -> None:
    """Draw some lines: the image, the reference and the hypothesis; digits that differ are red.

    :param recognised: all held-out lines
    :param path: picture to write
    :param num_lines: how many lines to draw
    :param num_wrong: how many of them with mistakes, as far as there are any
    """
    chosen = choose(recognised, num_lines, num_wrong)
    width = max(len(line.pixels) for line in chosen)
    figure, rows = pyplot.subplots(len(chosen), 1, figsize=(8, 0.75 * len(chosen) + 0.6), squeeze=False)
    for line, axes in zip(chosen, rows[:, 0]):
        axes.imshow(line.pixels.T, cmap="gray_r", vmin=0, vmax=1, aspect="auto", extent=(0, len(line.pixels), 12, 0))
        axes.set(xlim=(0, width), xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color("lightgray")
        write_digits(axes, 0.72, "reference", marked(line.reference, line.hypothesis))
        write_digits(axes, 0.28, "read", marked(line.hypothesis, line.reference))
    wrong = sum(1 for line in recognised if line.num_errors)
    figure.suptitle(
        "%d of %d held-out lines (%d with mistakes); label error rate %.2f %%"
        % (len(chosen), len(recognised), wrong, decode.label_error_rate(recognised)),
        fontsize=10,
    )
    figure.subplots_adjust(left=0.02, right=0.62, top=1 - 0.45 / (0.75 * len(chosen) + 0.6), bottom=0.02, hspace=0.25)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the results of the run are")
    parser.add_argument("name", nargs="?", default="", help="of another demo than digits.config")
    args = parser.parse_args()
    out, prefix = args.directory, args.name + "_" * bool(args.name)
    lines = os.path.join(out, "heldout.hdf")
    found = os.path.join(out, prefix + "search.py")
    if args.name and os.path.exists(found):
        recognised = decode.recognise_by_search(lines, found)
    else:
        recognised = decode.recognise(lines, os.path.join(out, prefix + "forward.hdf"))
    epochs = read_file(os.path.join(out, prefix + "learning_rates"))
    title = "Lines of handwritten digits, %s" % (args.name or "BLSTM + CTC")
    draw_learning_curve(epochs, os.path.join(out, prefix + "learning_curve.png"), title)
    draw_lines(recognised, os.path.join(out, prefix + "recognised.png"))
    print("label error rate on %d held-out lines: %.2f %%" % (len(recognised), decode.label_error_rate(recognised)))


if __name__ == "__main__":
    main()
