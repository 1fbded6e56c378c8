#!/usr/bin/env python3
"""Draws how the Transformer learned, where its decoder looks, and the scores of the translations.

python draw.py out             out/learning_curve.png, out/alignment.png, out/results.png
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import matplotlib
import numpy as np
from score import SETS

import returnn_tf
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.training.load_model import load_network

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from bars import draw_bars  # noqa: E402

WEIGHTS = "output/dec_%02d_cross_weights"


def draw_learning_curve(folder: str) -> None:
    """Draw the loss and the errors by epoch."""
    epochs = read_file(os.path.join(folder, "learning_rates"))
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(7, 5.5), sharex=True, layout="constrained")
    for data, style in (("train", "--"), ("dev", "-")):
        for panel, kind in ((upper, "score"), (lower, "error")):
            known = [
                (epoch, entry.error[key])
                for epoch, entry in sorted(epochs.items())
                for key in entry.error
                if key.startswith("%s_%s" % (data, kind))
            ]
            if known:
                panel.plot(*zip(*known), style, marker=".", label=data)
    upper.set_ylabel("cross entropy of a piece")
    lower.set(xlabel="epoch", ylabel="wrong next pieces", ylim=(0, 1))
    for panel in (upper, lower):
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(os.path.join(folder, "learning_curve.png"), dpi=110)
    pyplot.close(figure)


def attended(count: int) -> list[tuple[list[int], list[int], np.ndarray]]:
    """Return held-out messages: pieces of the source and of the translation, weights [target, source] of all heads."""
    config = returnn_tf.Config.from_file(os.path.join(HERE, "transformer.config"))
    net, _ = load_network(config, search=False)
    dataset = returnn_tf.Dataset.from_config({**config.typed("heldout"), "seq_ordering": "default"})
    name = WEIGHTS % config.typed("BLOCKS")
    found = []
    for batch in dataset.batches(epoch=1, batch_size=1000, max_seqs=1):
        if 6 <= len(batch.feed["data"][0]) <= 16:
            feed = {key: value for key, value in batch.feed.items() if key.split("/")[0] in ("data", "classes")}
            weights = averaged(net.run(feed, fetch=[name]).layers[name].value)
            found.append((batch.feed["data"][0].tolist(), batch.feed["classes"][0].tolist(), weights))
        if len(found) == count:
            break
    return found


def averaged(weights: Any) -> np.ndarray:
    """Return the mean over heads: [target, source].

    :param weights: [target, 1, heads, source] in any order in which the heads stand between the other two
    """
    return np.squeeze(np.squeeze(weights).mean(axis=1))


def draw_alignment(folder: str) -> None:
    """Draw for some messages which pieces of the source the decoder looks at for each of the translation."""
    with open(os.path.join(folder, "labels.txt"), encoding="utf8") as file:
        labels = file.read().splitlines()
    found = attended(4)
    figure, panels = pyplot.subplots(1, len(found), figsize=(4.2 * len(found), 5), squeeze=False, layout="constrained")
    for panel, (source, target, weights) in zip(panels[0], found):
        panel.imshow(weights, cmap="Blues", vmin=0, aspect="auto")
        panel.set_xticks(range(len(source)), [labels[index] for index in source], rotation=90, fontsize=8)
        panel.set_yticks(range(len(target)), [labels[index] for index in target], fontsize=8)
    figure.suptitle("Attention weights of the last block, mean of the heads: a row for each piece of the translation")
    figure.savefig(os.path.join(folder, "alignment.png"), dpi=110)
    pyplot.close(figure)


def draw_results(folder: str) -> None:
    """Draw BLEU as bars."""
    with open(os.path.join(folder, "results.json"), encoding="utf8") as file:
        results = json.load(file)
    scores = {system: {name: of_sets[name]["BLEU"] for name in SETS} for system, of_sets in results.items()}
    draw_bars(os.path.join(folder, "results.png"), scores, SETS, (8, 2.8), xlabel="BLEU")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    args = parser.parse_args()
    draw_learning_curve(args.folder)
    draw_results(args.folder)
    draw_alignment(args.folder)
    print("wrote learning_curve.png, results.png, alignment.png to", args.folder)


if __name__ == "__main__":
    main()
