#!/usr/bin/env python3
"""Makes an alignment of phones out of one with blanks, and says how far it is from the given one.

    python alignments.py out/ru_ctc_1_alignment_dev.hdf out/ru_dev_realigned_1.hdf --given out/ru_dev_given.hdf

CTC says where a phone is, but not how long it lasts: frames of blank belong to the phone before them in their first
half, and to the one behind them in their second half. The distances are those of the ends of phones, in ms.
"""

from __future__ import annotations

import argparse
import sys
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError
from returnn_tf.datasets import Dataset, HDFWriter

Labels = NDArray[np.int32]  # [frames]


def runs(labels: Labels) -> list[tuple[int, int, int]]:
    """Return label, first frame and frame behind the last one of each stretch of equal labels."""
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    return [(int(labels[a]), int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(labels)])]


def without_blanks(labels: Labels, blank: int) -> Labels:
    """Return the phone of each frame.

    :raises ValueError: there is nothing but blanks
    """
    segments = [run for run in runs(labels) if run[0] != blank]
    if not segments:
        raise ValueError("there is nothing but blanks")
    ends = [(end + start) // 2 for (_, _, end), (_, start, _) in zip(segments, segments[1:])]
    return np.repeat([label for label, _, _ in segments], np.diff([0, *ends, len(labels)])).astype(np.int32)


def distances(aligned: Labels, given: Labels) -> Optional[NDArray[np.int32]]:
    """Return how many frames the ends of segments, but of the last one, are apart; None if the phones are not the same.

    Equal phones in a row are one segment, in both.
    """
    found, expected = runs(aligned), runs(given)
    if [label for label, _, _ in found] != [label for label, _, _ in expected]:
        return None
    return np.array([abs(one[2] - two[2]) for one, two in zip(found, expected)][:-1], np.int32)


def read(path: str) -> tuple[dict[str, Labels], int]:
    """Return the labels of each sequence of an HDF file, and their number.

    :raises DataError: the file is missing or of another kind
    """
    dataset = Dataset.from_config({"class": "HDFDataset", "files": [path]})
    found = {sequence.tag: np.asarray(sequence.data["data"], np.int32).reshape(-1) for sequence in dataset.sequences()}
    return found, dataset.num_outputs["data"][0]


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alignment", help="labels and blanks, the last label; by task forward")
    parser.add_argument("output", help="file to write")
    parser.add_argument("--given", required=True, metavar="FILE", help="the alignment to compare with")
    args = parser.parse_args()
    try:
        (alignments, size), (given, labels) = read(args.alignment), read(args.given)
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    apart, others = [np.zeros(0, np.int32)], []
    with HDFWriter(args.output, dim=labels, ndim=1, replace=True) as writer:
        for tag, aligned in alignments.items():
            phones = without_blanks(aligned, size - 1)
            writer.insert_batch(phones[None], [len(phones)], [tag])
            frames = distances(phones, given[tag])
            apart.append(frames) if frames is not None else others.append(tag)
    values = 10 * np.concatenate(apart)
    if len(values):
        figures = (len(values), values.mean(), np.median(values), 100 * np.mean(values <= 20))
        print("%d ends of phones are apart: mean %.1f ms, median %.0f ms, %.1f %% at most 20 ms" % figures)
    if others:  # a phone shorter than a frame is in none of the given labels
        print("not comparable: %d sentences, e.g. %s" % (len(others), others[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
