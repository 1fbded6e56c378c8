"""``returnn-tf data dump CONFIG [NAME]``: the sequences of a dataset as text, and plots of them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data import source
from returnn_tf.cli.data.drawing import draw_sequence
from returnn_tf.cli.data.statistics import known_labels
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.logging.text import printable

_DOC = """
Print sequences of a dataset: shapes, values, names of the labels.

    returnn-tf data dump my.config                        the first 10 sequences of the first epoch
    returnn-tf data dump my.config dev --seqs 3 --keys classes,orth
    returnn-tf data dump my.config --tags seq-3,seq-7 --values 1000
    returnn-tf data dump my.config --plot pictures        also draws each sequence: pictures/TAG.png
"""
_PRECISION = 4


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("data dump", _DOC)
    source.add_arguments(result)
    result.add_argument("--seqs", metavar="N", type=positive, default=10, help="number of sequences (10)")
    result.add_argument("--tags", metavar="TAG,TAG", help="these sequences")
    result.add_argument(
        "--values", metavar="N", type=positive, default=20, help="labels or frames of a sequence to print (20)"
    )
    result.add_argument("--plot", metavar="FOLDER", help="also draw the sequences, to PNG files in this folder")
    return result


def run(args: list[str]) -> int:
    """Print the sequences, and draw them if requested."""
    parsed, found = source.parse(parser(), args)
    keys = source.chosen_keys(found.dataset, parsed.keys)
    count = 0
    for sequence in _chosen(found.dataset, keys, parsed):
        count += 1
        lines = describe(sequence, keys, found.dataset.data_specs, parsed.values)
        print("\n".join(map(printable, lines)), flush=True)
        if parsed.plot:
            path = os.path.join(parsed.plot, file_name(sequence.tag) + ".png")
            _make_folder(parsed.plot)
            draw_sequence(sequence, keys, found.dataset.data_specs, path)
            print("  drawn to %s" % path)
    if not count:
        raise FileDataError("%s has no sequences" % found.title)
    found.close()
    return 0


def _chosen(dataset: Dataset, keys: list[str], parsed: Any) -> Iterator[Example]:
    tags = [tag.strip() for tag in parsed.tags.split(",")] if parsed.tags else None
    return itertools.islice(source.sequences(dataset, parsed.epoch or 1, keys, tags), None if tags else parsed.seqs)


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as exc:
        raise FileError("data dump: can't make the folder %r: %s" % (path, exc.strerror)) from None


def file_name(tag: str) -> str:
    """Return a tag as the name of a file: what is not a letter, digit or one of ``._-`` becomes ``_``."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in tag).lstrip(".")[:200] or "sequence"


def describe(sequence: Example, keys: list[str], specs: dict[str, DataSpec], limit: int) -> Iterator[str]:
    """Yield the lines on a sequence.

    :param limit: labels or frames to print; ``sys.maxsize``: all, with all features
    """
    yield "%s (position %d, index %d in the corpus)" % (sequence.tag, sequence.position, sequence.index)
    for key in keys:
        value, spec = sequence.data[key], specs[key]
        shape = "[%s]" % ", ".join(map(str, value.shape))
        yield "  %s %s %s" % (key, "string" if value.dtype.kind in "OSU" else value.dtype.name, shape)
        text = as_text(value, spec)
        if text is not None:
            yield "    %r" % text
        elif spec.sparse and value.ndim == 1:
            yield "    " + _labels(value, known_labels(spec), limit)
        else:
            yield from ("    " + line for line in _frames(value, limit))


def as_text(value: NDArray[Any], spec: DataSpec) -> Optional[str]:
    """Return the text of a value: of strings, or of bytes in UTF-8; else None."""
    if value.dtype.kind in "OSU":
        parts = [part.decode("utf8", "replace") if isinstance(part, bytes) else str(part) for part in value.reshape(-1)]
        return " ".join(parts)
    if value.dtype == np.uint8 and value.ndim == 1 and spec.dim == 256:
        return value.tobytes().decode("utf8", "replace")
    return None


def _labels(value: NDArray[Any], names: tuple[str, ...], limit: int) -> str:
    labels = map(int, value[:limit])
    shown = ["%d=%s" % (i, names[i]) if 0 <= i < len(names) else str(i) for i in labels]
    return " ".join(shown) + _rest(len(value), limit)


def _frames(value: NDArray[Any], limit: int) -> Iterator[str]:
    rows = value.reshape(1, -1) if value.ndim < 2 else value
    threshold = 24 if limit < sys.maxsize else limit
    with np.printoptions(precision=_PRECISION, linewidth=120, threshold=threshold, edgeitems=4, suppress=True):
        for row in rows[:limit]:
            yield str(row[:limit] if value.ndim < 2 else row).replace("\n", " ")
    length = len(value) if value.ndim else 1
    if length > limit:
        yield _rest(length, limit).strip()


def _rest(length: int, limit: int) -> str:
    return " ... (%d of %d)" % (limit, length) if length > limit else ""
