"""The texts of the sequences of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.dump import as_text
from returnn_tf.compat.tool.shared.datasets import OpenDataset, sequences
from returnn_tf.config import DataError


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
            raise DataError(
                "%s: the key %r of %r holds %s %s, not text. Choose another --key"
                % (opened.title, key, sequence.tag, value.dtype, list(value.shape))
            )
        yield sequence.tag, text


def _text(value: NDArray[Any], spec: Any) -> Optional[str]:
    if value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes().decode("utf8", "replace")
    return as_text(value, spec)
