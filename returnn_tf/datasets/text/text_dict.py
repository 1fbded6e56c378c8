"""TextDictDataset: texts by tag, such as the output of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import TextDataError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import read_text_dict
from returnn_tf.datasets.vocabulary import make_vocabulary


@register_dataset()
class TextDictDataset(Dataset):
    """A Python dict from tag to text, or to a list of (score, text), as ``search_output_file`` writes it.

    Key "data" has the labels of the text, or of that with the best score; then there are also "data_flat" with the
    labels of all texts one after the other, "data_seq_lens" with their numbers and "scores". The length by which
    ``sorted`` etc. order the corpus is the number of characters in all texts.

    >>> from returnn_tf.datasets import Dataset
    >>> eval = {"class": "TextDictDataset", "filename": "search.py.gz", "vocab": {"vocab_file": "words.txt"}}
    >>> dataset = Dataset.from_config(eval)   # doctest: +SKIP
    """

    @dataclass
    class Options(Dataset.Options):
        filename: str = option(help="the dict as Python literal; .gz allowed")
        item_format: str = option(
            "list_with_scores", help="what the dict has for a tag", choices=("list_with_scores", "single")
        )
        vocab: Any = option(help="vocabulary of the labels")

    def setup(self) -> None:
        """Make the vocabulary; the file is read later."""
        self._vocabulary = make_vocabulary(self.opts.vocab, owner="%s: vocab" % self._owner())
        self._content: Optional[dict[str, list[tuple[float, str]]]] = None
        self._tags: list[str] = []
        dim, labels = self._vocabulary.num_labels, tuple(self._vocabulary.labels)
        spec = DataSpec(dim=dim, ndim=1, dtype="int32", labels=labels)
        self.data_specs = {"data": spec}
        if self.opts.item_format != "single":
            self.data_specs = {
                "data": DataSpec(dim=dim, ndim=1, dtype="int32"),
                "data_flat": spec,
                "data_seq_lens": DataSpec(dim=1, ndim=1, dtype="int32", is_sparse=False),
                "scores": DataSpec(dim=1, ndim=1, dtype="float32"),
            }

    def _texts(self) -> dict[str, list[tuple[float, str]]]:
        if self._content is None:
            with self._wanted_by("filename"):
                table = read_text_dict(self.opts.filename)
            self._content = {tag: self._checked(tag, item) for tag, item in table.items()}
            self._tags = list(self._content)
        return self._content

    def _checked(self, tag: str, item: Any) -> list[tuple[float, str]]:
        """Return the scores and texts of a tag."""
        if self.opts.item_format == "single":
            if isinstance(item, str):
                return [(0.0, item)]
            form, other = "a text", "list_with_scores"
        else:
            if isinstance(item, list) and item and all(_is_scored(entry) for entry in item):
                return [(float(score), text) for score, text in item]
            form, other = "a list of (score, text)", "single"
        fix = ". Set item_format to %r" % other if isinstance(item, list if other != "single" else str) else ""
        raise TextDataError("file %r: %r has %.100r, but must have %s%s" % (self.opts.filename, tag, item, form, fix))

    @property
    def num_seqs(self) -> int:
        """Return the number of tags."""
        return len(self._texts())

    def tag(self, index: int) -> str:
        """Return the tag, in the order of the file."""
        self._texts()
        return self._tags[index]

    def file_of(self, index: int) -> str:
        """Return the file."""
        return str(self.opts.filename)

    def seq_lengths(self) -> NDArray[Any]:
        """Return the number of characters of each sequence, [num_seqs]."""
        return np.asarray([sum(len(text) for _, text in entries) for entries in self._texts().values()], np.int64)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the labels of a sequence."""
        return self.read_again(index, epoch, keys, 0)

    @property
    def redraws(self) -> bool:
        """Return whether texts are split at random."""
        return self._vocabulary.is_random

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Return the labels of a sequence, with other random numbers than before."""
        entries = self._texts()[self._tags[index]]
        self._vocabulary.set_random_seed((self.epoch_seed(epoch) % 2**32, index, *([nth] if nth else [])))
        labels = [self._vocabulary.get_seq(text) for _, text in entries]
        scores = [score for score, _ in entries]
        best = max(range(len(scores)), key=lambda i: (not math.isnan(scores[i]), scores[i], -i))
        data = {
            "data": labels[best],
            "data_flat": [label for seq in labels for label in seq],
            "data_seq_lens": [len(seq) for seq in labels],
            "scores": scores,
        }
        return {key: np.asarray(data[key], self.data_specs[key].dtype) for key in keys}


def _is_scored(entry: Any) -> bool:
    return (
        isinstance(entry, tuple)
        and len(entry) == 2
        and isinstance(entry[0], (int, float))
        and isinstance(entry[1], str)
    )
