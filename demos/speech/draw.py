#!/usr/bin/env python3
"""Draws how the recognisers learned, where the attention decoders look, and the word error rates.

python draw.py out             out/learning_curves.png, out/attention.png, out/results.png
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import matplotlib
import numpy as np
from score import ENCODERS, SETS, read_labels

import returnn_tf
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.training.load_model import load_network

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from bars import draw_bars  # noqa: E402

COLORS = {"blstm": "tab:blue", "conformer": "tab:orange", "streaming": "tab:green"}
ERRORS = {"dev_error_ctc": ("CTC", "-"), "dev_error_output/prob": ("attention", "--")}


def draw_learning_curves(folder: str) -> None:
    """Draw the label errors on dev by epoch."""
    figure, axes = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    for encoder in ENCODERS:
        epochs = read_file(os.path.join(folder, encoder + "_learning_rates"))
        for key, (name, style) in ERRORS.items():
            known = [(epoch, 100 * data.error[key]) for epoch, data in sorted(epochs.items()) if key in data.error]
            if known:
                axes.plot(*zip(*known), style, marker=".", color=COLORS[encoder], label="%s, %s" % (encoder, name))
    axes.set(xlabel="epoch", ylabel="wrong pieces of words on dev, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title("CTC: best path; attention: next piece, after the right ones", fontsize=10)
    figure.savefig(os.path.join(folder, "learning_curves.png"), dpi=110)
    pyplot.close(figure)


def attended(encoder: str, name: str) -> tuple[str, Any, list[int], Any]:
    """Return a sentence with its features [frames, 120], labels, and attention weights [labels, encoder frames]."""
    config = returnn_tf.Config.from_file(os.path.join(HERE, encoder + ".config"))
    net, _ = load_network(config, search=False)
    dataset = returnn_tf.Dataset.from_config({**config.typed(name), "seq_ordering": "default"})
    batch = next(iter(dataset.batches(epoch=1, batch_size=5000, max_seqs=1)))
    feed = {key: value for key, value in batch.feed.items() if key.split("/")[0] in ("data", "classes")}
    weights = net.run(feed, fetch=["output/weights"]).layers["output/weights"].value
    return batch.seq_tags[0], batch.feed["data"][0], batch.feed["classes"][0].tolist(), np.squeeze(weights)


def draw_attention(folder: str) -> None:
    """Draw the spectrogram of a held-out sentence, and below it where each decoder looks for each piece."""
    found = [(encoder, attended(encoder, "heldout")) for encoder in ENCODERS]
    labels = [*read_labels(os.path.join(folder, "bpe.vocab")), "end"]
    tag, features, indices, _ = found[0][1]
    figure, axes = pyplot.subplots(len(found) + 1, 1, figsize=(9, 3 + 3.2 * len(found)), layout="constrained")
    seconds = 0.03 * len(features)
    spectrum = features.reshape(-1, 40)  # every 10 ms again
    axes[0].imshow(spectrum.T, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, 40))
    axes[0].set(title="%s: log-mel features" % tag, ylabel="mel band")
    for panel, (encoder, (_, _, _, weights)) in zip(axes[1:], found):
        if weights.shape[0] != len(indices) + 1:
            weights = weights.T
        panel.imshow(weights, aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=(0, seconds, len(weights), 0))
        panel.set_yticks(np.arange(len(weights)) + 0.5, [labels[index] for index in [*indices, -1]], fontsize=7)
        panel.set_title("%s: attention weights for each piece" % encoder, fontsize=10)
    axes[-1].set_xlabel("seconds")
    figure.savefig(os.path.join(folder, "attention.png"), dpi=110)
    pyplot.close(figure)


def draw_results(folder: str) -> None:
    """Draw the word error rates as bars."""
    with open(os.path.join(folder, "results.json"), encoding="utf8") as file:
        rates = json.load(file)
    size = (9, 0.55 * len(rates) + 1.2)
    draw_bars(os.path.join(folder, "results.png"), rates, SETS, size, xlabel="word error rate, %", xlim=(0, 110))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    args = parser.parse_args()
    draw_learning_curves(args.folder)
    draw_results(args.folder)
    draw_attention(args.folder)
    print("wrote learning_curves.png, results.png, attention.png to", args.folder)


if __name__ == "__main__":
    main()
