"""``returnn-tf data info CONFIG [NAME]``: counts, lengths, labels and values of a dataset."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from returnn_tf.cli.data import source
from returnn_tf.cli.data.durations import duration, seconds_of
from returnn_tf.cli.data.statistics import KeyStatistics, unknown_labels
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.logging.text import printable

_DOC = """
Read a dataset and describe it: sequences, duration, data keys; lengths with a histogram; labels by frequency; values.

    returnn-tf data info my.config                   the training data, all of it
    returnn-tf data info my.config dev --seqs 1000   the first 1000 sequences
    returnn-tf data info train.hdf --keys classes
"""
_BARS = 40
_PROGRESS_SECONDS = 10.0


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("data info", _DOC)
    source.add_arguments(result)
    result.add_argument("--seqs", metavar="N", type=positive, help="read the first N sequences only")
    result.add_argument("--labels", metavar="N", type=positive, default=10, help="most frequent labels to show")
    result.add_argument("--bins", metavar="N", type=positive, default=10, help="rows of a histogram")
    return result


def run(args: list[str]) -> int:
    """Print the description.

    :raises DataError: there are no sequences, or one can't be read
    """
    parsed, found = source.parse(parser(), args)
    keys = source.chosen_keys(found.dataset, parsed.keys)
    unknown = unknown_labels(found.dataset.opts)
    statistics = {key: KeyStatistics(key, found.dataset.data_specs[key], unknown) for key in keys}
    count = 0
    for sequence in _limited(found.dataset, parsed.epoch, keys, parsed.seqs):
        count += 1
        for key, value in sequence.data.items():
            statistics[key].add(value)
    if not count:
        raise FileDataError("%s has no sequences" % found.title)
    print("\n".join(printable(line, keep="\n") for line in _describe(found, statistics, count, parsed)))
    found.close()
    return 0


def _limited(dataset: Dataset, epoch: Optional[int], keys: list[str], limit: Optional[int]) -> Iterator[Example]:
    """Iterate over the sequences; on a terminal, report the progress every few seconds."""
    if dataset.endless and limit is None:
        raise FileError("data info: the dataset %r is endless; add --seqs N" % dataset.name)
    order = source.corpus_order(dataset, epoch)
    total = None if order is None else len(order) if limit is None else min(limit, len(order))
    reported = time.monotonic()
    for number, sequence in enumerate(itertools.islice(source.sequences(dataset, epoch, keys), limit)):
        if sys.stderr.isatty() and time.monotonic() > reported + _PROGRESS_SECONDS:
            reported = time.monotonic()
            print("read %d sequences%s" % (number, "" if total is None else " of %d" % total), file=sys.stderr)
        yield sequence


def _describe(
    found: source.CorpusSource, statistics: dict[str, KeyStatistics], count: int, parsed: Any
) -> Iterable[str]:
    dataset = found.dataset
    yield "%s: %s" % (found.title, type(dataset).__name__)
    yield _count_line(dataset, statistics, count, parsed)
    yield ""
    rows: list[tuple[str, ...]] = [("key", "form", "dim", "dtype", "frames", "shortest", "mean", "median", "longest")]
    rows += [entry.row() for entry in statistics.values()]
    yield from table(rows)
    alike: dict[tuple[int, ...], list[str]] = {}  # lengths -> keys
    for entry in statistics.values():
        if entry.has_time and len(set(entry.lengths)) > 1:
            alike.setdefault(tuple(entry.lengths), []).append(repr(entry.key))
    for lengths, keys in alike.items():
        yield "\nlengths of %s:" % ", ".join(keys)
        yield from histogram(lengths, parsed.bins)
    for entry in statistics.values():
        yield from entry.details(parsed.labels)


def _count_line(dataset: Dataset, statistics: dict[str, KeyStatistics], count: int, parsed: Any) -> str:
    line = "%d sequences" % count
    if count == parsed.seqs and dataset.num_seqs != count:
        line += " read" + (" of %d" % dataset.num_seqs if dataset.num_seqs is not None else "")
    elif parsed.epoch:
        line += " in epoch %d" % parsed.epoch
    seconds = seconds_of(dataset, {key: sum(entry.lengths) for key, entry in statistics.items()})
    return line + (", " + duration(seconds) if seconds is not None else "")


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table: the first two columns left aligned, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def histogram(values: Sequence[int], bins: int) -> list[str]:
    """Return a histogram of integers as lines: range, bar, count. Ranges are equally wide and hold integers."""
    low, high = min(values), max(values)
    width = -(-(high - low + 1) // bins)
    counts = [0] * -(-(high - low + 1) // width)
    for value in values:
        counts[(value - low) // width] += 1
    digits = len(str(high))
    lines = []
    for number, count in enumerate(counts):
        start = low + number * width
        bar = "#" * round(_BARS * count / max(counts))
        lines.append("  %*d - %*d  %-*s %d" % (digits, start, digits, min(start + width - 1, high), _BARS, bar, count))
    return lines
