"""Composes lines of handwritten digits out of single scanned ones.

A line is a picture of ``HEIGHT`` rows which is read column by column: a column of pixels is one frame, so the inputs
are ``[time, HEIGHT]`` and the targets are the digits from left to right. Every digit of a line is cut to its ink and
then drawn with a stretch, a slant, a height on the line, a strength and a gap of its own. :func:`compose` makes one
set, :func:`write_hdf` stores it as ``HDFDataset`` reads it. Everything is a function of the seed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import h5py
import numpy as np

HEIGHT = 12  # rows of a line: 8 of a digit and some room to move up and down
NUM_CLASSES = 10
SETS = ("train", "dev", "heldout")


class Digits(NamedTuple):
    """The scanned digits: ``images`` float32 [N, 8, 8] in 0 .. 1 (ink), ``labels`` int32 [N]."""

    images: np.ndarray
    labels: np.ndarray


class Line(NamedTuple):
    """One line: ``pixels`` float32 [time, HEIGHT], ``labels`` int32 [digits] and, of each, the number of its image."""

    pixels: np.ndarray
    labels: np.ndarray
    sources: np.ndarray


def load_digits(path: str) -> Digits:
    """Read the file which ``tools/make_digits_hdf.py`` writes."""
    with h5py.File(path, "r") as file:
        return Digits(file["images"][()].astype("float32") / 16, file["labels"][()].astype("int32"))


def split_sources(num_images: int, seed: int, num_dev: int = 150, num_heldout: int = 300) -> dict[str, np.ndarray]:
    """Divide the images among the sets, so that no image is in two of them.

    :return: name of the set -> sorted image numbers
    """
    if num_images <= num_dev + num_heldout:
        raise ValueError("%d images are too few for %d dev and %d held-out ones" % (num_images, num_dev, num_heldout))
    order = np.random.default_rng(seed).permutation(num_images)
    parts = np.split(order, [num_heldout, num_heldout + num_dev])
    return {name: np.sort(part) for name, part in zip(("heldout", "dev", "train"), parts)}


def _sample(image: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the image between its pixels (bilinear), paper outside, at columns [width, 1] and rows [width, n]."""
    padded = np.pad(image, 1)
    x, y = (np.clip(at + 1, 0, size + 1) for at, size in ((columns, image.shape[1]), (rows, image.shape[0])))
    left, top = np.minimum(x.astype("int64"), image.shape[1]), np.minimum(y.astype("int64"), image.shape[0])
    x, y = x - left, y - top
    upper = (1 - x) * padded[top, left] + x * padded[top, left + 1]
    lower = (1 - x) * padded[top + 1, left] + x * padded[top + 1, left + 1]
    return (1 - y) * upper + y * lower


def _bend(columns: np.ndarray, rows: np.ndarray, strength: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Return where the pixels come from in a digit of another hand: slanted, scaled, with bent strokes.

    :param columns: [width, 1] as of ``_sample``
    :param rows: [width, n]
    :param strength: 1 moves the strokes by up to about a pixel
    :return: columns and rows, both [width, n]
    """
    x, y = (columns - 3.5) / 4, (rows - 3.5) / 4  # -1 .. 1 over the image
    monomials = [np.broadcast_to(part, rows.shape) for part in (y, x * y, x * x, y * y)]
    bend = strength * rng.uniform(-1, 1, (2, len(monomials)))
    return [base + np.tensordot(by, monomials, 1) for base, by in zip((columns, rows), bend)]


def draw_digit(image: np.ndarray, rng: np.random.Generator, bend: float = 0.0) -> np.ndarray:
    """Return one digit as it is on the line: [8 rows, 8 columns] -> [width, HEIGHT], columns first, cropped to the ink.

    :param bend: how much its strokes are bent, see :func:`_bend`
    """
    ink = np.flatnonzero(image.any(axis=0))
    ink_width = ink[-1] - ink[0] + 1
    width = max(3, round(ink_width * rng.uniform(0.8, 1.3)))
    top = rng.uniform(0, HEIGHT - image.shape[0])
    slant = rng.uniform(-0.2, 0.2)  # rows per column
    at = np.arange(width)[:, None]
    columns = ink[0] + (at + 0.5) * ink_width / width - 0.5
    rows = np.arange(HEIGHT) - top - slant * (at - (width - 1) / 2)
    if bend:
        columns, rows = _bend(columns, rows, bend, rng)
    return _sample(image, columns, rows) * rng.uniform(0.7, 1.0)


def compose_line(digits: Digits, sources: Sequence[int], rng: np.random.Generator, bend: float = 0.0) -> Line:
    """Return one line of the given images, with varying gaps between them and margins at both ends."""
    parts: list[np.ndarray] = [np.zeros((int(rng.integers(0, 5)), HEIGHT))]
    for source in sources:
        parts.append(draw_digit(digits.images[source], rng, bend))
        parts.append(np.zeros((int(rng.integers(0, 5)), HEIGHT)))
    pixels = np.concatenate(parts).astype("float32")
    return Line(pixels, digits.labels[list(sources)], np.asarray(sources, "int32"))


def compose(
    digits: Digits,
    sources: np.ndarray,
    num_lines: int,
    seed: Sequence[int],
    num_digits: tuple[int, int] = (3, 8),
    bend: float = 0.0,
) -> list[Line]:
    """Return a set of lines.

    :param digits: all images
    :param sources: the numbers of the images which this set may use
    :param num_lines: how many lines
    :param seed: the same seed gives the same lines
    :param num_digits: smallest and largest number of digits of a line
    :param bend: how much strokes are bent, so that few scans look like many; 0 for lines to test on
    """
    rng = np.random.default_rng(list(seed))
    lengths = rng.integers(num_digits[0], num_digits[1] + 1, size=num_lines)
    total = int(lengths.sum())
    # whole passes over the images, each in a new order: every image is used about equally often
    passes = [rng.permutation(sources) for _ in range(-(-total // len(sources)))]
    pieces = np.split(np.concatenate(passes)[:total], np.cumsum(lengths)[:-1])
    return [compose_line(digits, piece, rng, bend) for piece in pieces]


def write_hdf(path: str, lines: Sequence[Line], tag_prefix: str, attributes: dict[str, str]) -> None:
    """Write the lines as ``HDFDataset`` reads them; to a temporary file first, so that the file is whole or absent.

    :param path: the file to write; an existing one is replaced
    :param lines: at least one
    :param tag_prefix: sequence tags are ``<tag_prefix>-<number>``
    :param attributes: further attributes of the file, for example where the images come from
    """
    temp = "%s.tmp%d" % (path, os.getpid())
    try:
        with h5py.File(temp, "w") as file:
            _fill(file, lines, tag_prefix)
            file.attrs.update(attributes)
        os.replace(temp, path)
    finally:
        if os.path.exists(temp):
            os.remove(temp)


def _fill(file: h5py.File, lines: Sequence[Line], tag_prefix: str) -> None:
    lengths = np.array([(len(line.pixels), len(line.labels)) for line in lines], "int32")
    tags = np.array(["%s-%05d" % (tag_prefix, i) for i in range(len(lines))], "S")
    file.create_dataset("inputs", data=np.concatenate([line.pixels for line in lines]))
    file["seqLengths"] = lengths
    file["seqTags"] = tags
    file.create_dataset("labels", shape=(0,), dtype="S5")
    file["targets/data/classes"] = np.concatenate([line.labels for line in lines])
    file["targets/labels/classes"] = np.array([str(i) for i in range(NUM_CLASSES)], "S2")
    file.create_group("targets/size").attrs["classes"] = np.array([NUM_CLASSES, 1], "int32")
    # no part of the layout, readers pass it over: which image each digit was drawn from
    file["sourceImages"] = np.concatenate([line.sources for line in lines])
    file.attrs["inputPattSize"] = HEIGHT
    file.attrs["numDims"] = 1
    file.attrs["numLabels"] = NUM_CLASSES
    file.attrs["numSeqs"] = len(lines)
    file.attrs["numTimesteps"] = int(lengths[:, 0].sum())
