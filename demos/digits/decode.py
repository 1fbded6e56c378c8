"""What a recogniser read, from its label probabilities or from a search, and how many of the digits are wrong."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

import h5py
import numpy as np


class Recognised(NamedTuple):
    """One held-out line: ``pixels`` [time, rows], the digits which stand there and the digits which were read."""

    tag: str
    pixels: np.ndarray
    reference: list[int]
    hypothesis: list[int]

    @property
    def num_errors(self) -> int:
        """Return the smallest number of digits to insert, delete or replace that makes one out of the other."""
        return edit_distance(self.reference, self.hypothesis)


def read_hdf(path: str, target: str = "") -> dict[str, np.ndarray]:
    """Return one stream of an HDF dataset.

    :param path: file as ``HDFDataset`` reads it and the task "forward" writes it
    :param target: key of a target; ``""`` is the input
    :return: sequence tag -> array [time, ...]
    """
    with h5py.File(path, "r") as file:
        keys = sorted(file["targets/data"]) if "targets/data" in file else []
        column = 1 + keys.index(target) if target else 0
        data = file["targets/data"][target][()] if target else file["inputs"][()]
        tags = [tag.decode("utf8") if isinstance(tag, bytes) else tag for tag in file["seqTags"][()]]
        ends = np.cumsum(file["seqLengths"][()][:, column])
    return dict(zip(tags, np.split(data, ends[:-1])))


def greedy_ctc(probabilities: np.ndarray) -> list[int]:
    """Return the best label of each frame [time, dim], repetitions merged and blanks (the last label) dropped."""
    best = probabilities.argmax(axis=1)
    first = np.append(True, best[1:] != best[:-1])
    return [int(label) for label in best[first] if label != probabilities.shape[1] - 1]


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        diagonal, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            diagonal, row[j + 1] = row[j + 1], min(diagonal + (x != y), row[j] + 1, row[j + 1] + 1)
    return row[-1]


def recognise(lines_hdf: str, forward_hdf: str) -> list[Recognised]:
    """Return every line of a dataset with its best labels per column, in the order of the dataset.

    :param lines_hdf: the dataset
    :param forward_hdf: what the task "forward" wrote for it
    """
    read = {tag: greedy_ctc(output) for tag, output in read_hdf(forward_hdf).items()}
    return _beside_references(lines_hdf, read, forward_hdf)


def recognise_by_search(lines_hdf: str, search_output: str) -> list[Recognised]:
    """Return every line of a dataset with the hypothesis of the search, in the order of the dataset.

    :param lines_hdf: the dataset
    :param search_output: what the task "search" wrote for it in the format "py": tag -> digits, with spaces between
        them if the labels of the layer are not the digits alone
    """
    with open(search_output, encoding="utf8") as file:
        found = ast.literal_eval(file.read())
    read = {tag: [int(label) for label in (text.split() if " " in text else text)] for tag, text in found.items()}
    return _beside_references(lines_hdf, read, search_output)


def _beside_references(lines_hdf: str, read: dict[str, list[int]], path: str) -> list[Recognised]:
    """Return references and hypotheses; ``read`` is tag -> labels, from the file ``path``."""
    pixels, classes = read_hdf(lines_hdf), read_hdf(lines_hdf, "classes")
    missing = sorted(set(pixels) - set(read))
    if missing:
        what = "%s lacks %d lines of %s, the first is %r"
        raise ValueError(what % (path, len(missing), lines_hdf, missing[0]))
    return [Recognised(tag, pixels[tag], classes[tag].tolist(), read[tag]) for tag in pixels]


def label_error_rate(recognised: Sequence[Recognised]) -> float:
    """Return the percentage of edits over all digits of the references."""
    return 100.0 * sum(line.num_errors for line in recognised) / sum(len(line.reference) for line in recognised)
