#!/usr/bin/env python3
"""Draws prompts of the test as spectrograms, with the phones of the phrase that is found, where CTC has their labels.

    python draw_prompts.py out/prompts_1 en/conf-full ru/dir-welcome       out/prompts_1_phones.png

Where no prompts are named, one of each language is taken. Audio is that of the zips; posteriors are those of the
export, in out/prompts_1_export.
"""

from __future__ import annotations

import argparse
import csv
import os
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from numpy.typing import NDArray
from prompts import RATE, VOICES

from returnn_tf.datasets import Dataset
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.export.saved_model.loader import load, read_facts
from returnn_tf.ops.sequence.lexicon import read_lexicon
from returnn_tf.ops.sequence.ngram_file import open_ngram

matplotlib.use("Agg")
from matplotlib import pyplot

FRAME = 0.03  # seconds from one posterior to the next
SHIFT, WINDOW = RATE // 200, RATE // 40  # samples, of the spectrogram


class Found(NamedTuple):
    """The phrase that was found in a prompt, and its phones: begin and end in seconds, name."""

    phrase: str
    phones: list[tuple[float, float, str]]


def some_tags(folder: str) -> list[str]:
    """Return the first prompt of each language that has 15 to 25 phones, or the first one."""
    found = []
    for language in VOICES:
        with open(os.path.join(folder, "prompts_test_%s.tsv" % language), encoding="utf8", newline="") as file:
            phones = {
                row["seq_name"]: row["text"].split()
                for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            }
        found.append(next((tag for tag, of in phones.items() if 15 <= len(of) <= 25), next(iter(phones))))
    return found


def read_samples(folder: str, tags: list[str]) -> dict[str, NDArray[np.float32]]:
    """Return the samples of prompts of the test, by tag."""
    found = {}
    for language in sorted({tag.split("/")[0] for tag in tags}):
        path = os.path.join(folder, "prompts_test_%s.zip" % language)
        audio = {"features": "raw", "sample_rate": RATE, "peak_normalization": False}
        dataset = Dataset.from_config({"class": "OggZipDataset", "path": path, "audio": audio, "targets": None})
        found.update({s.tag: s.data["data"].reshape(-1) for s in dataset.sequences() if s.tag in tags})
    missing = [tag for tag in tags if tag not in found]
    if missing:
        raise SystemExit("%s: no prompt of the test" % missing[0])
    return found


def find(model: str, samples: dict[str, NDArray[np.float32]]) -> dict[str, Found]:
    """Return what the exported model finds in prompts, by tag."""
    export = model + "_export"
    run, output = load(export), read_facts(export)["outputs"]["output"]
    with open(os.path.join(export, output["vocabulary"]), encoding="utf8") as file:
        labels = DecodedLabels(file.read().splitlines())
    prefix = os.path.join(os.path.dirname(model), "prompts")
    options = BeamOptions(beam_size=2000, beam_threshold=1000.0, labels_per_frame=0, lm_scale=1.0)
    found = {}
    for tag, audio in samples.items():
        language = tag.split("/")[0]
        lexicon = read_lexicon("%s_%s.lexicon" % (prefix, language), labels)
        lm = open_ngram("%s_%s.arpa" % (prefix, language), None, lexicon)
        feed: dict[str, Any] = {"data": audio[None, :, None], "data_size0": np.array([len(audio)], np.int32)}
        feed.update(language=np.array([[list(VOICES).index(language)]], np.int32), language_size0=np.ones(1, np.int32))
        posteriors = run(**feed)["output"][0]
        decoder = BeamDecoder(posteriors.shape[1], output["blank"], labels, options, lexicon=lexicon, lm=lm)
        best = decoder.decode(np.log(np.maximum(posteriors, 1e-30)))[0]
        assert best.words is not None and best.frames is not None
        spans = [(FRAME * begin, FRAME * end, labels.names[n]) for n, (begin, end) in zip(best.labels, best.frames)]
        found[tag] = Found(" ".join(best.words), spans)
    return found


def spectrogram(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the power in dB, [frequencies, frames]."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::SHIFT] * np.hanning(WINDOW)
    power = np.square(np.abs(np.fft.rfft(frames, 512))).T
    return np.asarray(10 * np.log10(power + 1e-5), np.float32)


def draw(path: str, samples: dict[str, NDArray[np.float32]], found: dict[str, Found]) -> None:
    """Draw prompts one below the other."""
    figure, all_axes = pyplot.subplots(
        len(found), 1, figsize=(9, 2.6 * len(found)), layout="constrained", squeeze=False
    )
    for axes, (tag, answer) in zip(all_axes[:, 0], found.items()):
        image = spectrogram(samples[tag])
        end = len(samples[tag]) / RATE
        axes.imshow(
            image, origin="lower", aspect="auto", cmap="magma", vmin=image.max() - 70, extent=(0, end, 0, RATE / 2000)
        )
        for number, (begin, stop, phone) in enumerate(answer.phones):
            axes.axvline(begin, color="white", linewidth=0.6, alpha=0.7)
            height = RATE / 2000 * (0.93 if number % 2 else 0.84)
            axes.text((begin + stop) / 2, height, phone, color="white", ha="center", fontsize=9)
        axes.set(title="%s: taken for %s" % (tag, answer.phrase), ylabel="kHz", xlim=(0, end))
    all_axes[-1, 0].set_xlabel("seconds")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="prefix of a model; its export is in MODEL_export")
    parser.add_argument("tags", nargs="*", metavar="PROMPT", help="LANGUAGE/NAME")
    args = parser.parse_args()
    folder = os.path.dirname(args.model)
    tags = args.tags or some_tags(folder)
    samples = read_samples(folder, tags)
    found = find(args.model, {tag: samples[tag] for tag in tags})
    draw(args.model + "_phones.png", samples, found)
    for tag, answer in found.items():
        print("%s: %s: %s" % (tag, answer.phrase, " ".join("%s %.2f" % (name, at) for at, _, name in answer.phones)))


if __name__ == "__main__":
    main()
