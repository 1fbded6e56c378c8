#!/usr/bin/env python3
"""Answers with the text of the training utterance that sounds most alike, by dynamic time warping.

    python nearest.py out/cs_train out/cs_test              out/cs_test_nearest.py, a dict from tag to text
    python nearest.py out/prompts_en_spoken out/prompts_test_en --tags --sample-rate 8000       from tag to tag

Frames are 13 MFCCs of 40 ms, mean and variance normalised in each utterance. The distance of two utterances is that of
the best alignment (Sakoe and Chiba 1978, symmetric, no limit on the slope), divided by the sum of their lengths.
"""

from __future__ import annotations

import argparse
import pprint
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets import Dataset

Frames = NDArray[np.float32]  # [time, features]
JOINED = 4  # frames of 10 ms


def mono(audio: NDArray[Any], **_: Any) -> NDArray[Any]:
    """Return the mean of the channels."""
    return audio.mean(axis=1) if audio.ndim == 2 else audio


def read(path: str, rate: int) -> tuple[list[str], list[str], list[Frames]]:
    """Return tags, texts and frames of a zip.

    :param rate: of its audio, in Hz
    """
    audio = {"features": "mfcc", "num_feature_filters": 13, "sample_rate": rate, "pre_process": mono}
    dataset = Dataset.from_config({"class": "OggZipDataset", "path": path, "audio": audio, "targets": None})
    tags, texts, frames = [], [], []
    for sequence in dataset.sequences():
        tags.append(sequence.tag)
        texts.append(str(np.asarray(sequence.data["raw"]).item()))
        frames.append(shortened(sequence.data["data"]))
    return tags, texts, frames


def shortened(features: NDArray[Any]) -> Frames:
    """Return a frame for every ``JOINED``, their mean; each feature has mean 0 and variance 1."""
    padded = np.pad(features, ((0, -len(features) % JOINED), (0, 0)), mode="edge")
    values = padded.reshape(-1, JOINED, features.shape[1]).mean(axis=1)
    return np.asarray((values - values.mean(axis=0)) / (values.std(axis=0) + 1e-3), np.float32)


def distances(asked: Frames, known: Sequence[Frames]) -> NDArray[np.float32]:
    """Return the distances of an utterance to others, [others].

    All alignments are computed at once, from one diagonal of the matrices of frames to the next.
    """
    lengths = np.array([len(frames) for frames in known])
    size, longest = len(asked), int(lengths.max())
    padded = np.zeros((len(known), longest, asked.shape[1]), np.float32)
    for row, frames in zip(padded, known):
        row[: len(frames)] = frames
    squares = np.square(padded).sum(axis=2)[:, None] + np.square(asked).sum(axis=1)[None, :, None]
    local = np.sqrt(np.maximum(squares - 2 * np.einsum("if,njf->nij", asked, padded, optimize=True), 0))
    # by diagonals: skewed[n, i, i + j] = local[n, i, j]; what is outside of the matrix can't be reached
    skewed = np.full((len(known), size, size + longest - 1), np.inf, np.float32)
    for i in range(size):
        skewed[:, i, i : i + longest] = local[:, i]
    skewed = np.ascontiguousarray(np.moveaxis(skewed, 2, 0))
    nothing = np.full((len(known), size), np.inf, np.float32)
    before, last = nothing, nothing.copy()
    last[:, 0] = skewed[0, :, 0]
    found = np.where(lengths + size == 2, last[:, -1], np.float32(np.inf))
    for number, costs in enumerate(skewed[1:], 1):
        new = last + costs  # one frame further in the other utterance
        new[:, 1:] = np.minimum(new[:, 1:], last[:, :-1] + costs[:, 1:])  # in this one
        new[:, 1:] = np.minimum(new[:, 1:], before[:, :-1] + 2 * costs[:, 1:])  # in both
        before, last = last, new
        found = np.where(lengths + size - 2 == number, last[:, -1], found)
    return np.asarray(found / (lengths + size), np.float32)


def nearest(asked: Sequence[Frames], known: Sequence[Frames], at_once: int = 64) -> list[int]:
    """Return for each utterance the index of the one that is most like it; lengths differ by a factor of 2 at most."""
    order = np.argsort([len(frames) for frames in known], kind="stable")
    lengths = np.array([len(known[index]) for index in order])
    result = []
    for frames in asked:
        first, last = np.searchsorted(lengths, [len(frames) / 2, 2 * len(frames) + 1])
        chosen = order[first:last] if first < last else order
        parts = [chosen[start : start + at_once] for start in range(0, len(chosen), at_once)]
        found = np.concatenate([distances(frames, [known[index] for index in part]) for part in parts])
        result.append(int(chosen[found.argmin()]))
    return result


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("known", help="zip of the training set, without .zip")
    parser.add_argument("asked", help="that of a held-out set")
    parser.add_argument("--sample-rate", type=int, default=16000, metavar="HZ", help="of the audio (16000)")
    parser.add_argument("--tags", action="store_true", help="answer with tags of the training set, not with texts")
    args = parser.parse_args()
    known_tags, texts, known = read(args.known + ".zip", args.sample_rate)
    tags, _, asked = read(args.asked + ".zip", args.sample_rate)
    names = known_tags if args.tags else texts
    answers = {tag: names[index] for tag, index in zip(tags, nearest(asked, known))}
    with open(args.asked + "_nearest.py", "w", encoding="utf8") as file:
        file.write(pprint.pformat(answers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
