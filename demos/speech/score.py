#!/usr/bin/env python3
"""Counts wrong words of the recognisers, and of what needs no recogniser.

    python score.py out            out/results.json, and a table

Word error rate: substituted, deleted and inserted words over those which were said, by the package jiwer.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
from collections.abc import Iterable, Mapping

import jiwer
import numpy as np
from numpy.typing import NDArray

SETS = ("sentences", "voices")  # new sentences of known voices; new sentences of new voices
ENCODERS = ("blstm", "conformer", "streaming")
LAYERS = {"CTC": "ctc_decision", "attention": "decision"}
Texts = dict[str, str]  # tag -> words


def read_table(path: str) -> Texts:
    """Return what was said."""
    with open(path, encoding="utf8", newline="") as file:
        return {row["seq_name"]: row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def read_labels(path: str) -> list[str]:
    """Return the pieces by label."""
    with open(path, encoding="utf8") as file:
        return file.read().splitlines()


def joined(pieces: Iterable[str]) -> str:
    """Return the words of pieces: one that ends in @@ is continued by the next."""
    return (" ".join(pieces) + " ").replace("@@ ", "").strip()


def read_search(path: str) -> dict[str, Texts]:
    """Return what a search found, by layer."""
    with open(path, encoding="utf8") as file:
        found = ast.literal_eval(file.read())
    return {layer: {tag: joined(pieces[layer].split()) for tag, pieces in found.items()} for layer in LAYERS.values()}


def word_error_rate(references: Texts, hypotheses: Mapping[str, str]) -> float:
    """Return the word error rate in percent."""
    tags = sorted(references)
    return 100 * float(jiwer.wer([references[tag] for tag in tags], [hypotheses.get(tag, "") for tag in tags]))


def typical_sentence(train: Texts, dev: Texts, candidates: int = 400) -> str:
    """Return the training sentence that makes the fewest errors if it is the answer to everything in dev."""
    texts = sorted(set(train.values()))[:: max(1, len(train) // candidates)]
    return min(texts, key=lambda text: word_error_rate(dev, dict.fromkeys(dev, text)))


def sound_of(path: str, size: int = 24) -> dict[str, NDArray[np.floating]]:
    """Return a vector of fixed size for each utterance of a zip: its spectrogram squeezed to ``size`` frames."""
    from returnn_tf.datasets import Dataset

    audio = {
        "features": "log_mel_filterbank",
        "num_feature_filters": 40,
        "norm_mean": "per_seq",
        "norm_std_dev": "per_seq",
    }
    dataset = Dataset.from_config({"class": "OggZipDataset", "path": path, "audio": audio, "targets": None})
    found = {}
    for sequence in dataset.sequences():
        parts = np.array_split(sequence.data["data"], size)
        vector = np.concatenate([part.mean(axis=0) for part in parts])
        found[sequence.tag] = vector / np.linalg.norm(vector)
    return found


def most_similar(folder: str, train: Texts, name: str) -> Texts:
    """Return for each utterance the text of the training utterance which sounds most like it."""
    known, asked = sound_of(os.path.join(folder, "train.zip")), sound_of(os.path.join(folder, name + ".zip"))
    tags = list(known)
    nearest = np.argmax(np.stack(list(asked.values())) @ np.stack(list(known.values())).T, axis=1)
    return {tag: train[tags[index]] for tag, index in zip(asked, nearest)}


def systems(folder: str) -> dict[str, Texts]:
    """Return the answers of all recognisers whose results are there, by name."""
    found = {}
    for encoder in ENCODERS:
        path = os.path.join(folder, encoder + "_search.py")
        if os.path.exists(path):
            texts = read_search(path)
            found.update({"%s, %s" % (encoder, name): texts[layer] for name, layer in LAYERS.items()})
        path = os.path.join(folder, encoder + "_decode.py")
        if os.path.exists(path):
            with open(path, encoding="utf8") as file:
                found[encoder + ", CTC with a lexicon"] = ast.literal_eval(file.read())
    return found


def results(folder: str) -> dict[str, dict[str, float]]:
    """Return the word error rates: system -> set -> percent."""
    tables = {name: read_table(os.path.join(folder, name + ".tsv")) for name in ("train", "dev", *SETS)}
    typical = typical_sentence(tables["train"], tables["dev"])
    rates: dict[str, dict[str, float]] = {"always %r" % typical: {}, "the training sentence that sounds most alike": {}}
    first, second = rates
    for name in SETS:
        rates[first][name] = word_error_rate(tables[name], dict.fromkeys(tables[name], typical))
        rates[second][name] = word_error_rate(tables[name], most_similar(folder, tables["train"], name))
    for system, texts in systems(folder).items():
        rates[system] = {name: word_error_rate(tables[name], texts) for name in SETS}
    return rates


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    args = parser.parse_args()
    rates = results(args.folder)
    with open(os.path.join(args.folder, "results.json"), "w", encoding="utf8") as file:
        json.dump(rates, file, indent=1)
    width = max(map(len, rates))
    print("%-*s  %s" % (width, "word error rate on", "  ".join("new %s" % name for name in SETS)))
    for system, of_sets in rates.items():
        print("%-*s  %s" % (width, system, "  ".join("%*.2f %%" % (len(name) + 2, of_sets[name]) for name in SETS)))


if __name__ == "__main__":
    main()
