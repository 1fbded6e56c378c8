#!/usr/bin/env python3
"""Draws where the attention decoder looks while it reads a line.

    python draw_attention.py attention.config

searches in held-out lines with the newest model and writes out/attention.png: the picture of each line and, in
the same columns below it, a row for every label that was read with the weights of the attention when it was chosen. The
last line is one with a mistake if there is any.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import decode
import numpy as np
from draw import choose, marked, pyplot

import returnn_tf
from returnn_tf.engine.training.load_model import load_network

LABELS, WEIGHTS = "output", "output/weights"  # layers of the network


class Attended(NamedTuple):
    """One line with what was read; ``weights`` [labels which were read, frames of the encoder]."""

    line: decode.Recognised
    weights: np.ndarray


def attend(net: Any, pixels: dict[str, np.ndarray], classes: dict[str, np.ndarray]) -> list[Attended]:
    """Search in one batch of lines.

    :param net: planned for search, with parameters
    :param pixels: tag -> [time, rows]
    :param classes: tag -> digits
    """
    lens = np.array([len(line) for line in pixels.values()], "int32")
    data = np.zeros((len(lens), lens.max(), next(iter(pixels.values())).shape[1]), "float32")
    for row, line in zip(data, pixels.values()):
        row[: len(line)] = line
    num_labels = np.array([len(classes[tag]) for tag in pixels], "int32")
    targets = np.zeros((len(lens), num_labels.max()), "int32")
    for row, tag in zip(targets, pixels):
        row[: len(classes[tag])] = classes[tag]
    feed = {"data": data, "data/size0": lens, "classes": targets, "classes/size0": num_labels}
    layers = net.run(feed, fetch=[WEIGHTS]).layers
    labels, weights = layers[LABELS], layers[WEIGHTS]
    beam = len(labels.value) // len(lens)  # the hypotheses of a line are neighbours, the best one comes first
    frame_axis = max(weights.sizes)  # the other axis with lengths is that of the labels
    by_step = np.moveaxis(weights.value, frame_axis, 2).reshape(*labels.value.shape, -1)
    result = []
    for i, tag in enumerate(pixels):
        num, num_frames = labels.sizes[1][i * beam], weights.sizes[frame_axis][i * beam]
        read = labels.value[i * beam, :num].tolist()
        line = decode.Recognised(tag, pixels[tag], classes[tag].tolist(), read)
        result.append(Attended(line, by_step[i * beam, :num, :num_frames]))
    return result


def draw(attended: Sequence[Attended], path: str) -> None:
    """Draw each line with the attention weights below it.

    :param attended: at least one
    :param path: picture to write
    """
    heights = [size for entry in attended for size in (1.0, 0.24 * max(1, len(entry.weights)), 0.42)]
    figure = pyplot.figure(figsize=(8.5, 0.72 * sum(heights) + 0.9))
    top = 1 - 0.7 / figure.get_figheight()
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, left=0.05, right=0.92, top=top, bottom=0.005)
    grid.update(hspace=0.06)
    width = max(len(entry.line.pixels) for entry in attended)
    for i, entry in enumerate(attended):
        picture, weights = (figure.add_subplot(grid[3 * i + k, 0]) for k in range(2))
        _draw_picture(entry.line, picture)
        image = _draw_weights(entry, weights)
        for axes in (picture, weights):
            axes.set(xlim=(0, width), xticks=[])
            axes.tick_params(length=0)
            for spine in axes.spines.values():
                spine.set_visible(False)
    bar = figure.colorbar(image, cax=figure.add_axes((0.935, grid[1, 0].get_position(figure).y0, 0.012, 0.1)))
    bar.ax.tick_params(labelsize=7)
    figure.suptitle("Where the decoder looks in the line for each digit it writes (attention weights)", fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_picture(line: decode.Recognised, axes: Any) -> None:
    num_columns, num_rows = line.pixels.shape
    axes.imshow(line.pixels.T, cmap="gray_r", vmin=0, vmax=1, aspect="auto", extent=(0, num_columns, num_rows, 0))
    reference = " ".join(str(digit) for digit in line.reference)
    axes.set_title("%s, reference: %s" % (line.tag, reference), fontsize=8, loc="left", pad=3)
    axes.set_yticks([])


def _draw_weights(entry: Attended, axes: Any) -> Any:
    """Draw a row for each recognised label, wrong ones in red, over the columns of the image."""
    line, (num_labels, num_frames) = entry.line, entry.weights.shape
    columns = num_frames * -(-len(line.pixels) // num_frames)  # a frame stands for several columns
    axes.set(yticks=np.arange(num_labels) + 0.5, ylim=(num_labels, 0))
    axes.set_yticklabels([str(label) for label in line.hypothesis], fontsize=9, family="monospace")
    for text, (_, color) in zip(axes.get_yticklabels(), marked(line.hypothesis, line.reference)):
        text.set_color(color)
    for i in range(num_labels + 1):
        axes.plot((0, columns), (i, i), color="lightgray", linewidth=0.6, zorder=3)
    extent = (0, columns, num_labels, 0)
    return axes.imshow(entry.weights, cmap="Reds", vmin=0, vmax=1, aspect="auto", extent=extent)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="which trained the model; paths in it are below the working directory")
    parser.add_argument("--lines", type=int, default=5, metavar="N", help="how many lines (default %(default)s)")
    parser.add_argument("--search", type=int, default=40, metavar="N", help="out of so many (default %(default)s)")
    parser.add_argument("--out", default="out/attention.png", metavar="PNG", help="default %(default)s")
    args = parser.parse_args()
    config = returnn_tf.Config.from_file(args.config)
    net, _ = load_network(config, search=True)
    (path,) = config.typed("eval")["files"]
    pixels, classes = decode.read_hdf(path), decode.read_hdf(path, "classes")
    batch = {tag: pixels[tag] for tag in list(pixels)[: args.search]}
    attended = {entry.line.tag: entry for entry in attend(net, batch, classes)}
    chosen = choose([entry.line for entry in attended.values()], args.lines, 1)
    draw([attended[line.tag] for line in chosen], args.out)
    print("wrote %s" % os.path.normpath(args.out))


if __name__ == "__main__":
    main()
