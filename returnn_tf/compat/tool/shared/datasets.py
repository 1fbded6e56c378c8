"""The dataset that a tool is called with, and its sequences."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.dump import as_text
from returnn_tf.cli.data.source import HDF_SUFFIXES
from returnn_tf.cli.run import read_config
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError, did_you_mean
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.datasets.config import DatasetOfConfig
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.share import Chosen

_GIVEN = "--dataset"  # where a dataset is put that the command line gives


@dataclass(frozen=True)
class OpenDataset:
    """A dataset, with the config that it is from.

    :param title: how messages call it
    """

    dataset: Dataset
    config: Config
    title: str

    def close(self) -> None:
        """Close the files of the dataset, if it has any open."""
        close = getattr(self.dataset, "close", None)
        if close is not None:
            close()

    def check_key(self, key: str) -> None:
        """Check that there is a data key.

        :raises ConfigError: there is not; names the nearest one
        """
        if key not in self.dataset.data_keys:
            hint = did_you_mean(key, self.dataset.data_keys)
            raise CommandError("%s has no data key %r. %s" % (self.title, key, hint))


def is_config(text: str) -> bool:
    """Return whether the first argument of a tool names a config, and is not a dataset itself.

    A dataset is a dict as text, an HDF file, ``ClassName:key=value,...`` or the name of a class.

    :raises ConfigError: it looks like the name of a config, but there is no such file
    """
    is_call = ":" in text and text.partition(":")[0].isidentifier()
    if is_call or text.lstrip().startswith("{") or text.lower().endswith((*HDF_SUFFIXES, ".gz")):
        return False
    if os.path.isfile(text) or text.endswith(".config"):
        return True
    if os.sep in text or "." in text:
        raise CommandError("there is no config %r (current directory: %s)" % (text, os.getcwd()))
    return False


def open_dataset(text: str, name: Optional[str] = None, overrides: Sequence[str] = ()) -> OpenDataset:
    """Open a dataset. Sequences are in its own order, also those of evaluation datasets.

    :param text: a config, or a dataset, see `is_config`
    :param name: in the config: train (default), dev, a key of ``eval_datasets``, any name in it; or a dataset as text,
        also ``config:<expression>``
    :param overrides: ``++key value`` for the config
    :raises ConfigError: there is no such dataset
    """
    if is_config(text):
        return of_config(read_config([text, *overrides]), name or "train", text)
    if name is not None:
        raise CommandError("--dataset %r names one of a config, but %r is a dataset itself" % (name, _short(text)))
    if overrides:
        raise CommandError("%s changes a config, but %r is a dataset itself" % (overrides[0], _short(text)))
    return given_dataset(text)


def dataset_of_options(config: Optional[str], name: Optional[str], overrides: Sequence[str] = ()) -> OpenDataset:
    """Open the dataset of the options ``--config`` and ``--dataset``, at least one of which is given.

    :param config: path of the config
    :param name: of the dataset in it (default train), or a dataset as text
    :raises ConfigError: there is no such dataset
    """
    if config:
        return of_config(read_config([config, *overrides]), name or "train", config)
    return open_dataset(name or "train", None, overrides)


def given_dataset(text: Any) -> OpenDataset:
    """Open the dataset that a text is, without a config."""
    config = Config()
    config.update({_GIVEN: _without_config(text)})
    return _opened(config, _GIVEN, "the dataset %s" % _short(str(text)))


def of_config(config: Config, name: Any, place: str) -> OpenDataset:
    """Open a dataset of a config.

    :param name: in the config, or a dataset as text; or a dataset itself
    :param place: the config, for messages
    """
    if isinstance(name, str) and not name.lstrip().startswith("{") and ":" not in name and not _is_hdf(name):
        return _opened(config, name, "the dataset %r of %s" % (name, place))
    config.update({_GIVEN: name})
    return _opened(config, _GIVEN, "the dataset %s of %s" % (_short(str(name)), place))


def _opened(config: Config, name: str, title: str) -> OpenDataset:
    order = {} if name == "train" else {"seq_ordering": DataSettings(config).batching or "default"}
    return OpenDataset(DatasetOfConfig(config, name, order)(), config, title)


def _is_hdf(text: str) -> bool:
    return text.lower().endswith(HDF_SUFFIXES)


def _without_config(text: Any) -> Any:
    if isinstance(text, str) and text.strip().startswith("config:"):
        raise CommandError("the dataset %r is of a config, but no config is given" % text)
    return text


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def positions(
    opened: OpenDataset,
    epoch: int,
    keys: list[str],
    *,
    first: int = 0,
    last: Optional[int] = None,
    tags: Optional[Sequence[str]] = None,
) -> Iterator[tuple[EpochReader, int]]:
    """Iterate over the sequences of an epoch in its order without reading them: the reader and the position.

    :param keys: the data keys to read
    :param first: position to begin at
    :param last: position to end at, inclusive; None: read all
    :param tags: these sequences instead
    :raises ConfigError: the dataset is endless, and no last position is given
    """
    if opened.dataset.endless and last is None and not tags:
        raise CommandError("%s is endless: give the number of the last sequence to read" % opened.title)
    with contextlib.closing(opened.dataset.open_epoch(epoch, keys, Chosen(tags))) as reader:
        num_used = 0
        for position in itertools.count():
            if (last is not None and position > last) or not reader.has(position):
                break
            if position >= first and reader.is_usable(position):
                num_used += 1
                yield reader, position
            reader.release(position + 1)
        reader.report_broken(num_used)


def sequences(opened: OpenDataset, epoch: int, keys: list[str], **which: Any) -> Iterator[Example]:
    """Iterate over the sequences of an epoch in its order; for the parameters see `positions`."""
    for reader, position in positions(opened, epoch, keys, **which):
        yield reader.sequence(position)


def texts_of(opened: OpenDataset, key: str, *, first: int = 0, last: int = -1) -> Iterator[tuple[str, str]]:
    """Yield tag and text of the sequences of the first epoch, in the order of the dataset.

    :param key: data key with the texts: strings, or bytes in UTF-8
    :param first: position to begin at
    :param last: position to end at, inclusive; -1: read all
    :raises ConfigError: there is no such key
    :raises DataError: the key holds no text
    """
    opened.check_key(key)
    for sequence in sequences(opened, 1, [key], first=first, last=None if last < 0 else last):
        text = _text(sequence.data[key], opened.dataset.data_specs[key])
        if text is None:
            value = sequence.data[key]
            raise CommandDataError(
                "%s: the key %r of %r holds %s %s, not text. Choose another --key"
                % (opened.title, key, sequence.tag, value.dtype, list(value.shape))
            )
        yield sequence.tag, text


def _text(value: NDArray[Any], spec: Any) -> Optional[str]:
    if value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes().decode("utf8", "replace")
    return as_text(value, spec)
