"""The texts of a corpus: lines of text files, a column of a table, a Bliss corpus, or a dataset of a config."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional, TextIO

import numpy as np

from returnn_tf.cli.data import source
from returnn_tf.cli.data.corpus_list import read_corpus
from returnn_tf.cli.data.dump import as_text
from returnn_tf.cli.run import read_config
from returnn_tf.config.errors import FileDataError, FileError, did_you_mean
from returnn_tf.datasets.config import dataset_from_config
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.datasets.speech.utterances import UtteranceDataset

#: What separates the columns of a table; commas may stand within quotes, tabs may not.
_TABLES = {".tsv": "\t", ".csv": ","}
_BLISS = (".xml", ".xml.gz")
_CONFIGS = (".config", ".py")


def corpus_texts(corpora: Sequence[str], dataset: Optional[str], columns: Sequence[str]) -> Iterator[str]:
    """Yield the texts of all sentences.

    :param corpora: paths of texts, tables and Bliss corpora, or of a config
    :param dataset: its name in the config; None: there is no config
    :param columns: with the texts, of tables
    :raises ConfigError: a config is not to be read, or its dataset has no texts
    :raises DataError: a file can't be read
    """
    if dataset is not None:
        if len(corpora) > 1:
            raise FileError("--dataset is for one config, not for %s" % ", ".join(map(repr, corpora)))
        yield from _of_dataset(corpora[0], dataset)
        return
    for path in corpora:
        if path.endswith(_CONFIGS):
            raise FileError("%r seems to be a config, not a text; add --dataset train" % path)
        if path.endswith(_BLISS):
            yield from (utterance.text for utterance in read_corpus(path))
        else:
            separator = next(
                (found for suffix, found in _TABLES.items() if path.endswith((suffix, suffix + ".gz"))), ""
            )
            with _opened(path) as file:
                yield from (
                    _cells(path, file, separator, columns) if separator else (line.rstrip("\r\n") for line in file)
                )


@contextlib.contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """Open a text file, decompressed if its name ends in .gz; only newlines end lines.

    :raises DataError: it is missing, damaged or no text, now or when it is read
    """
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(open_regular(path))
            if path.endswith(".gz"):
                file = stack.enter_context(gzip.open(file))
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n")
    except (OSError, EOFError, zlib.error) as exc:
        raise FileDataError("%r can't be read: %s" % (path, getattr(exc, "strerror", None) or exc)) from exc
    except UnicodeDecodeError as exc:
        raise FileDataError("%r is no text in UTF-8: %s" % (path, exc)) from exc


def _cells(path: str, file: TextIO, separator: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield the cells of some columns of a table, row by row."""
    quoting: Any = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    try:
        reader = csv.DictReader(file, delimiter=separator, quoting=quoting, strict=True)
        for column in columns:
            if column not in (reader.fieldnames or ()):
                hint = did_you_mean(column, reader.fieldnames or ())
                raise FileDataError("%s: there is no column %r. %s Choose one by --column" % (path, column, hint))
        for row in reader:
            for column in columns:
                if row[column] is None:
                    raise FileDataError("%s, line %d: there are fewer entries than columns" % (path, reader.line_num))
                yield row[column].rstrip("\r")
    except csv.Error as exc:
        raise FileDataError("%r is damaged: %s" % (path, exc)) from exc


def _of_dataset(path: str, name: str) -> Iterator[str]:
    """Yield the texts of a dataset whose vocabulary need not be there yet."""
    config = read_config([path])
    spec = config.typed(name)
    if isinstance(spec, dict) and "class" in spec:
        unread = {option: None for option in ("audio", "targets") if option in spec}
        config.update({name: {**spec, **unread}})
    dataset = dataset_from_config(config, name, partition_epoch=1)
    if dataset is None:
        raise FileError("the config %r has no dataset %r" % (path, name))
    with contextlib.closing(dataset):
        if isinstance(dataset, UtteranceDataset) and dataset.num_seqs is not None:
            yield from map(dataset.target_text, range(dataset.num_seqs))
        else:
            yield from _of_key(dataset)


def _of_key(dataset: Dataset) -> Iterator[str]:
    """Yield the texts of the first data key that is a text."""
    for key, spec in dataset.data_specs.items():
        if spec.is_text or (spec.dtype == "uint8" and spec.dim == 256):
            for sequence in source.sequences(dataset, None, [key]):
                yield as_text(np.asarray(sequence.data[key]), spec) or ""
            return
    raise FileError(
        "%s has no data key with texts. Name a dataset of speech or texts, or give the files" % dataset.described
    )
