"""The dataset that a command of ``returnn-tf data`` is called with."""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config import Config
from returnn_tf.config.errors import FileError, did_you_mean
from returnn_tf.datasets.config import DatasetOfConfig
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.share import Chosen

HDF_SUFFIXES = (".hdf", ".h5", ".hdf5")


@dataclass(frozen=True)
class CorpusSource:
    """A dataset of a config.

    :param factory: creates it, also in another process
    :param title: for the heading of an output
    :param dataset: one that it made
    """

    factory: DatasetOfConfig
    title: str
    dataset: Dataset

    def close(self) -> None:
        """Close the files of the dataset, if it has any open."""
        close = getattr(self.dataset, "close", None)
        if close is not None:
            close()


def add_arguments(parser: CommandParser, *, keys: bool = True) -> None:
    """Add the arguments that say which dataset, and which of its sequences.

    :param keys: whether data keys can be chosen
    """
    parser.add_argument(
        "config", metavar="CONFIG", help="a config, an HDF file, or a dataset as text: \"{'class': ..., ...}\""
    )
    parser.add_argument(
        "dataset", metavar="NAME", nargs="?", default="train", help="train (default), dev, a key of eval_datasets, ..."
    )
    parser.add_argument("--epoch", metavar="N", type=positive, help="the sequences of that epoch, in its order")
    if keys:
        parser.add_argument("--keys", metavar="KEY,KEY", type=_names, help="these data keys only")


def default_processes() -> int:
    """Return the number of CPUs, at most 8."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parse(parser: CommandParser, args: list[str]) -> tuple[argparse.Namespace, CorpusSource]:
    """Parse the arguments of a command and create its dataset.

    :param args: those of the command, then ``++key value`` for the config
    :raises ConfigError: wrong arguments, or the config has no such dataset
    """
    end = next((i for i, argument in enumerate(args) if argument.startswith("++")), len(args))
    parsed = parser.parse_args(args[:end])
    config, title = _read(parsed.config, parsed.dataset, args[end:])
    factory = DatasetOfConfig(config, parsed.dataset)
    return parsed, CorpusSource(factory, title, factory())


def _read(text: str, name: str, overrides: list[str]) -> tuple[Config, str]:
    """Return a config with the dataset, and a title."""
    if text.lower().endswith(HDF_SUFFIXES):
        return Config({name: {"class": "HDFDataset", "files": [text]}}), text
    if text.startswith("{"):
        try:
            return Config({name: ast.literal_eval(text)}), "dataset"
        except (ValueError, SyntaxError) as exc:
            raise FileError("the dataset %r is not a dict of plain values: %s" % (text, exc)) from None
    return read_config([text, *overrides]), "%s of %s" % (name, text)


def chosen_keys(dataset: Dataset, given: Optional[Sequence[str]]) -> list[str]:
    """Return the data keys in the order of the dataset.

    :param given: those asked for; default all
    :raises ConfigError: there is no such key
    """
    for key in given or ():
        if key not in dataset.data_keys:
            raise FileError("%r has no data key %r. %s" % (dataset.name, key, did_you_mean(key, dataset.data_keys)))
    return [key for key in dataset.data_keys if not given or key in given]


def epochs_of(dataset: Dataset, epoch: Optional[int]) -> Iterable[int]:
    """Return the epochs that make up one pass over the corpus, or the one asked for."""
    return [epoch] if epoch else range(1, dataset.opts.partition_epoch + 1)


def corpus_order(dataset: Dataset, epoch: Optional[int]) -> Optional[NDArray[Any]]:
    """Return corpus indices: of an epoch in its order, else of all sequences that any epoch uses, in corpus order.

    None: it is a stream or endless, so its sequences come as `epochs_of` gives them.
    """
    orders = [dataset.seq_order(number) for number in epochs_of(dataset, epoch)]
    known = [order for order in orders if order is not None]
    if not known:
        return None
    joined: NDArray[Any] = np.concatenate(known)
    return joined if epoch else np.unique(joined)


def sequences(
    dataset: Dataset, epoch: Optional[int], keys: list[str], tags: Optional[Sequence[str]] = None
) -> Iterator[Example]:
    """Iterate over the sequences of `corpus_order`, over a stream to its end, or over those with these tags."""
    order = None if tags else corpus_order(dataset, epoch)
    epochs = [epoch or 1] if tags or order is not None else epochs_of(dataset, epoch)
    for number in epochs:
        indices = None if order is None else [int(index) for index in order]
        with contextlib.closing(dataset.open_epoch(number, keys, Chosen(tags, indices))) as reader:
            for position in itertools.count():
                if not reader.has(position):
                    break
                yield reader.sequence(position)
                reader.release(position + 1)
