"""Label names of a layer, and conversion of label sequences to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets import Dataset
from returnn_tf.datasets.vocabulary import vocab_labels
from returnn_tf.datasets.vocabulary.spelling import Spelling
from returnn_tf.tensor import Data

#: Words, each with its first label, and the one past its last.
Spans = list[tuple[str, int, int]]
_BYTES = [chr(byte) for byte in range(256)]


class Labels:
    """Converts label indices to text.

    :param names: by index; None: write the indices
    :param separator: between two labels; default: a space, or nothing if each label is a character
    """

    def __init__(self, names: Optional[Sequence[str]], separator: Optional[str] = None) -> None:
        self.names = None if names is None else list(names)
        if separator is None:
            separator = "" if names and all(len(name) == 1 for name in names) else " "
        self.separator = separator
        self.spelling = Spelling(names, characters=True if separator == "" else None)

    @property
    def have_words(self) -> bool:
        """Return whether a text may have several words: not where labels are characters and none is a space."""
        return bool(self.separator) or any(name.isspace() for name in self.names or ())

    def text(self, indices: Iterable[int]) -> str:
        """Return the labels, joined by the separator; an index without name is written as a number."""
        return self.separator.join(self.each(indices))

    def each(self, indices: Iterable[int]) -> list[str]:
        """Return the name of each label, or its number."""
        names = self.names or []
        return [names[i] if 0 <= i < len(names) else str(i) for i in map(int, indices)]

    def words(self, indices: Iterable[int]) -> list[str]:
        """Return the words that the labels make up; subword units are joined."""
        return [word for word, _, _ in self.spans(indices)]

    def spans(self, indices: Iterable[int]) -> Spans:
        """Return the words that the labels make up, each with its first label, and the one past its last."""
        return self.spelling.spans(self.each(indices))


class Bytes(Labels):
    """Decodes UTF-8, replacing invalid bytes."""

    def __init__(self) -> None:
        super().__init__(_BYTES)

    def text(self, indices: Iterable[int]) -> str:
        """Return the decoded bytes."""
        return bytes(map(int, indices)).decode("utf8", errors="replace")


class ArrayText(str):
    """An array as text, in the syntax of Python."""


class Arrays(Labels):
    """Converts values that are no labels to text: nested lists of numbers."""

    def __init__(self) -> None:
        super().__init__(None)

    def text(self, indices: Any) -> str:
        """Return the array as nested lists."""
        return ArrayText(_nested(np.asarray(indices)))


def _nested(array: NDArray[Any]) -> str:
    if array.ndim:
        return "[%s]" % ", ".join(map(_nested, array))
    number = str(array)  # the fewest digits that identify a float32
    return number if np.isfinite(array) else "float(%r)" % number


def labels_of(
    output: Data,
    dataset: Dataset,
    extern_data: Mapping[str, Data],
    target: Optional[str],
    *,
    replaced: bool = True,
) -> Labels:
    """Return the labels of a layer: those of the data key with the same labels, from the dataset or its ``vocab``.

    :param output: of the layer; one without labels is written as arrays, 256 labels without names as bytes of UTF-8
    :param target: fallback data key, used if its number of labels matches
    :param replaced: take the names of a data key also where the labels replace those of it, e.g. with one more for the
        end of the sequence
    :raises ConfigError: the labels of a vocabulary of this class can't be read
    :raises DataError: a vocabulary file is missing or invalid
    """
    if output.sparse_dim is None:
        return Arrays()
    for key in _keys(output, extern_data, target, replaced):
        names = dataset.label_names.get(key)
        vocab = extern_data[key].vocab
        if not names and vocab is not None:
            names = vocab_labels(key, vocab)
        if names:
            return Bytes() if list(names) == _BYTES else Labels(names, _separator(vocab))
    return Bytes() if output.sparse_dim.size == len(_BYTES) else Labels(None)


def _keys(output: Data, extern_data: Mapping[str, Data], target: Optional[str], replaced: bool) -> list[str]:
    assert output.sparse_dim is not None
    dims = [output.sparse_dim]
    while replaced and dims[-1].labels_of is not None and dims[-1].labels_of not in dims:
        dims.append(dims[-1].labels_of)
    keys = [key for dim in dims for key, data in extern_data.items() if data.sparse_dim is dim]
    data = extern_data.get(target or "")
    if target and data is not None and data.sparse_dim is not None and data.sparse_dim.size == output.sparse_dim.size:
        keys.append(target)
    return keys


def _separator(vocab: Any) -> Optional[str]:
    return "" if isinstance(vocab, Mapping) and vocab.get("class") == "CharacterTargets" else None
