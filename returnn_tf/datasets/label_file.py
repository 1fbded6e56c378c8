"""Files with the labels of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.core.safe_files import read_literal, read_plain_pickle, read_text


def read_labels(path: str) -> list[str]:
    """Read the labels in the order of their indices.

    :param path: a pickled or literal dict from label to index, or a text file with one label per line
    :raises ConfigError: the indices have gaps
    :raises DataError: the file is missing or not a vocabulary
    """
    if path.endswith((".pkl", ".pkl.gz")):
        table = read_plain_pickle(path)
    else:
        text = read_text(path)
        if not text.startswith("{"):
            return text.splitlines()
        table = read_literal(path)
    if isinstance(table, (list, tuple)):
        return [str(label) for label in table]
    if not isinstance(table, dict) or not all(type(index) is int for index in table.values()):
        raise DataError("vocab_file %r: expected a dict {label: index, ...} or a list of labels." % path)
    table = {str(label): index for label, index in table.items()}
    names = {index: label for label, index in sorted(table.items())}  # of two labels for an index, the last one wins
    if sorted(names) != list(range(len(names))):
        raise ConfigError("vocab_file %r: the indices of its labels are not 0 to %d." % (path, len(names) - 1))
    return [names[index] for index in range(len(names))]


def vocab_labels(key: str, vocab: Any) -> list[str]:
    """Return the labels by index for the option ``vocab`` of a data key."""
    if isinstance(vocab, Mapping):
        labels = vocab.get("labels")
        if labels is not None:
            return [str(label) for label in (labels() if callable(labels) else labels)]
        if vocab.get("vocab_file"):
            return read_labels(vocab["vocab_file"])
    raise ConfigError(
        "extern_data[%r]: the labels of vocab = %r can't be read. Give vocab 'labels' (a list) or 'vocab_file'."
        % (key, vocab)
    )
