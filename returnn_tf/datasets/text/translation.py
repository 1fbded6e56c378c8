"""Parallel corpora: TranslationDataset, with several factors per word, and confusion networks as sources."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, TextDataError, TextError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import read_seq_tags
from returnn_tf.datasets.files import exists, is_url, local_copy
from returnn_tf.datasets.text.lines import LineTags, TextLines
from returnn_tf.datasets.vocabulary.files import read_ids

SOURCE, TARGET = "source", "target"


class WordIds:
    """The ids of the words of one key.

    :param path: pickled dict from word to id
    :param unknown_label: the word for others; None: these are an error
    :raises ConfigError: ``unknown_label`` is not in the vocabulary
    :raises DataError: the file is missing or no vocabulary
    """

    def __init__(self, path: str, unknown_label: Optional[str], where: str) -> None:
        self.path = path
        self._ids = read_ids(path)
        self._unknown = None if unknown_label is None else self._ids.get(unknown_label)
        if unknown_label is not None and self._unknown is None:
            raise TextError("%s: unknown_label %r is not in the vocabulary %r." % (where, unknown_label, path))

    @property
    def spec(self) -> DataSpec:
        """Return the format of the key; its labels are unknown if the ids have gaps."""
        names = {index: word for word, index in sorted(self._ids.items())}
        dim = max(names) + 1
        labels = tuple(names[index] for index in range(dim)) if len(names) == dim else None
        return DataSpec(dim=dim, ndim=1, dtype="int32", labels=labels)

    def ids(self, words: list[str]) -> list[int]:
        """Return the ids of words; DataError for an unknown one without ``unknown_label``."""
        table, unknown = self._ids, self._unknown
        if unknown is not None:
            return [table.get(word, unknown) for word in words]
        for word in words:
            if word not in table:
                raise TextDataError("%r is not in the vocabulary %r. Give unknown_label" % (word, self.path))
        return [table[word] for word in words]


def unknown_label_of(given: Any, key: str) -> Optional[str]:
    """Return the option ``unknown_label`` for a key; it may be a dict by key."""
    return given.get(key) if isinstance(given, Mapping) else given


class ParallelFiles:
    """The lines of the files ``source.<postfix>`` and ``target.<postfix>``, opened when they are first needed.

    :param folder: of the files; ``.gz`` is appended to names that are not there
    :param postfix: end of their names
    :param sides: "source", and "target" if there are targets
    :param where: prefix of errors
    :raises DataError: a file is missing
    """

    def __init__(self, folder: str, postfix: str, sides: list[str], *, local: bool, where: str) -> None:
        self._where = where
        self._local = local
        self.paths = {side: self._find(os.path.join(folder, "%s.%s" % (side, postfix))) for side in sides}
        self._lines: dict[str, TextLines] = {}

    def _find(self, path: str) -> str:
        for name in (path, path + ".gz"):
            if exists(name) if is_url(name) else os.path.isfile(name):
                return name
        raise TextDataError(
            "%s: there is neither %r nor %r (current directory: %s)."
            % (self._where, path, os.path.basename(path) + ".gz", os.getcwd())
        )

    def _open(self) -> dict[str, TextLines]:
        if not self._lines:
            lines = {
                side: TextLines(local_copy(path, wanted=self._local), skip_empty=False, name=path)
                for side, path in self.paths.items()
            }
            counts = {side: len(text) for side, text in lines.items()}
            if len(set(counts.values())) > 1:
                raise TextDataError(
                    "%s: %s have different numbers of lines."
                    % (self._where, " and ".join("%r (%d)" % (self.paths[side], n) for side, n in counts.items()))
                )
            self._lines = lines
        return self._lines

    def __len__(self) -> int:
        return len(self._open()[SOURCE])

    def text(self, side: str, index: int) -> str:
        """Return a line of one of the texts, without white space at both ends."""
        return self._open()[side].text(index).strip()

    def place(self, side: str, index: int) -> str:
        """Return file and number of a line, for messages."""
        return self._open()[side].place(index)

    def num_words(self, side: str) -> NDArray[np.int64]:
        """Return the number of words in each line."""
        return self._open()[side].num_words()


_ALTERNATIVES = "__ALT__"
_BETWEEN_ALTERNATIVES = "__"


@register_dataset()
class TranslationDataset(Dataset):
    """A parallel corpus: the words of ``source.<file_postfix>`` as "data", of ``target.<file_postfix>`` as "classes".

    The folder also has the vocabularies ``source.vocab.pkl`` and ``target.vocab.pkl``, pickled dicts from word to id.
    Empty lines are sequences, too. The length by which ``sorted`` etc. order the corpus is that of the source.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "TranslationDataset", "path": "data", "file_postfix": "train", "unknown_label": "<UNK>"}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(Dataset.Options):
        path: Union[str, os.PathLike[str]] = option(help="folder of the texts and vocabularies")
        file_postfix: str = option(help="end of the names of the texts, e.g. 'train'; .gz allowed")
        source_postfix: str = option("", help="text appended to each source line, e.g. ' </S>'")
        target_postfix: str = option("", help="text appended to each target line")
        source_only: bool = option(False, help="there are no targets")
        search_without_reference: bool = option(False, help="there is a vocabulary of targets, but no text")
        unknown_label: Union[None, str, dict[str, Any]] = option(
            None, help="word for those that are not in the vocabulary, also by key; None: these are an error"
        )
        seq_list_file: Optional[str] = option(
            None, help="numbers (from 0) or tags of the lines to read, one per line; these are the corpus then"
        )
        use_cache_manager: bool = option(False, help="copy the texts to the local disk first")

    #: data keys of the words
    keys = {SOURCE: "data", TARGET: "classes"}

    def setup(self) -> None:
        """Read the vocabularies; the texts are opened later."""
        opts = self.opts
        with_text = not (opts.source_only or opts.search_without_reference)
        self._sides = [SOURCE, TARGET] if with_text else [SOURCE]
        self._files = ParallelFiles(
            os.fspath(opts.path), opts.file_postfix, self._sides, local=opts.use_cache_manager, where=self._owner()
        )
        self._tags = LineTags("line-", self._owner())
        self._chosen: Optional[NDArray[Any]] = None
        self._postfix = {SOURCE: opts.source_postfix, TARGET: opts.target_postfix}
        self._ids: dict[str, WordIds] = {}
        for side in [SOURCE] if opts.source_only else [SOURCE, TARGET]:
            for key, name in self._vocabularies(side).items():
                self._ids[key] = self._read_ids(key, name)
        self.data_specs = self._specs()

    def _vocabularies(self, side: str) -> dict[str, str]:
        """Return the names of the vocabularies by key."""
        return {self.keys[side]: side}

    def _read_ids(self, key: str, name: str) -> WordIds:
        path = local_copy(os.path.join(os.fspath(self.opts.path), "%s.vocab.pkl" % name), wanted=False)
        return WordIds(path, unknown_label_of(self.opts.unknown_label, key), self._owner())

    def _specs(self) -> dict[str, DataSpec]:
        return {key: ids.spec for key, ids in self._ids.items()}

    @property
    def data_keys(self) -> list[str]:
        """Return the keys of which there is a text."""
        without = self._vocabularies(TARGET) if self.opts.search_without_reference else ()
        return [key for key in self.data_specs if key not in without]

    @property
    def target_list(self) -> list[str]:
        """Return the keys of the targets."""
        return [key for key in self.data_specs if key != self.keys[SOURCE]]

    @property
    def num_seqs(self) -> int:
        """Return the number of lines."""
        lines = self._chosen_lines()
        return len(self._files) if lines is None else len(lines)

    def _chosen_lines(self) -> Optional[NDArray[Any]]:
        """Return the lines in ``seq_list_file``, None for all."""
        path = self.opts.seq_list_file
        if path and self._chosen is None:
            with self._wanted_by("seq_list_file"):
                tags = ["line-" + tag if tag.isdecimal() else tag for tag in read_seq_tags(path)]
            self._chosen = self._tags.indices(tags, len(self._files))
        return self._chosen

    def _line(self, index: int) -> int:
        lines = self._chosen_lines()
        return index if lines is None else int(lines[index])

    def tag(self, index: int) -> str:
        """Return the number of the line as a tag."""
        return self._tags.tag(self._line(index))

    def file_of(self, index: int) -> str:
        """Return the source file."""
        return self._files.paths[SOURCE]

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return corpus indices of sequences given by tag; DataError for an unknown one."""
        return super().indices_of_tags(tags) if self.opts.seq_list_file else self._tags.indices(tags, self.num_seqs)

    def seq_lengths(self) -> NDArray[Any]:
        """Return the number of source words with the postfix, [num_seqs]."""
        counts = self._files.num_words(SOURCE) + _more_words(self.opts.source_postfix)
        lines = self._chosen_lines()
        return counts if lines is None else counts[lines]

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read a line of each text."""
        data: dict[str, NDArray[Any]] = {}
        for side in self._sides:
            if set(keys) & set(self._keys_of(side)):
                line = self._line(index)
                try:
                    data.update(self._read_side(side, self._files.text(side, line)))
                except DataError as exc:
                    raise TextDataError("%s: %s" % (self._files.place(side, line), exc)) from None
        return {key: data[key] for key in keys}

    def _keys_of(self, side: str) -> list[str]:
        return list(self._vocabularies(side))

    def _read_side(self, side: str, text: str) -> dict[str, NDArray[Any]]:
        key = self.keys[side]
        return {key: np.asarray(self._ids[key].ids((text + self._postfix[side]).split()), np.int32)}


def _more_words(postfix: str) -> int:
    """Return the number of words that a postfix adds to a line; one that begins without a blank joins the last word."""
    return len(("a" + postfix).split()) - 1


@register_dataset()
class TranslationFactorsDataset(TranslationDataset):
    """A parallel corpus whose words have factors, e.g. "house|NOUN": each factor is a key of its name.

    There is a vocabulary ``<factor>.vocab.pkl`` for each factor. The postfix is that of all factors.
    """

    @dataclass
    class Options(TranslationDataset.Options):
        source_factors: Optional[list[str]] = option(None, help="names of the factors after each source word")
        target_factors: Optional[list[str]] = option(None, help="names of the factors after each target word")
        factor_separator: str = option("|", help="sign between a word and its factors")

    def _vocabularies(self, side: str) -> dict[str, str]:
        factors = self.opts.source_factors if side == SOURCE else self.opts.target_factors
        names = {factor: factor for factor in factors or []}
        clash = set(names) & set(self.keys.values())
        if clash or len(names) < len(factors or []):
            raise TextError(
                "%s: %s_factors %s must be different names, other than those of the words."
                % (self._owner(), side, factors)
            )
        return {self.keys[side]: side, **names}

    def _specs(self) -> dict[str, DataSpec]:
        specs = super()._specs()
        words = [key for key in self.keys.values() if key in specs]
        return {key: specs[key] for key in words + [key for key in specs if key not in words]}

    def _read_side(self, side: str, text: str) -> dict[str, NDArray[Any]]:
        keys, sign = self._keys_of(side), self.opts.factor_separator
        columns: list[list[str]] = [[] for _ in keys]
        for word in text.split():
            parts = word.split(sign)
            if len(parts) != len(keys):
                expected = "%d factors" % (len(keys) - 1) if len(keys) > 1 else "no factors"
                raise TextDataError("%r has %d factors, but each word has %s" % (word, len(parts) - 1, expected))
            for column, part in zip(columns, parts):
                column.append(part)
        postfix = self._postfix[side]
        lists = [(" ".join(column) + postfix).split() for column in columns]
        return {key: np.asarray(self._ids[key].ids(words), np.int32) for key, words in zip(keys, lists)}


@register_dataset()
class ConfusionNetworkDataset(TranslationDataset):
    """A parallel corpus whose source lines may be confusion networks: alternatives with weights in place of words.

    A line "__ALT__ a|0.9__b|0.1 c|1.0" has two slots, of which the first has two alternatives; a line without
    ``__ALT__`` is plain text, with weight 1. Keys: "sparse_inputs" and "sparse_weights" [time, max_density], where a
    slot has less alternatives filled up with zeros; "classes".
    """

    @dataclass
    class Options(TranslationDataset.Options):
        max_density: int = option(20, help="the most alternatives of a slot", check=at_least(1))

    keys = {SOURCE: "sparse_inputs", TARGET: "classes"}
    weights_key = "sparse_weights"

    def setup(self) -> None:
        """Read the vocabularies; the texts are opened later."""
        if unknown_label_of(self.opts.unknown_label, self.keys[SOURCE]) is None:
            raise TextError("%s needs unknown_label." % self._owner())
        super().setup()

    def _specs(self) -> dict[str, DataSpec]:
        specs = super()._specs()
        words, density = specs.pop(self.keys[SOURCE]), self.opts.max_density
        weights = DataSpec(dim=density, ndim=2, dtype="float32", shape=(density,))
        inputs = DataSpec(dim=words.dim, ndim=2, dtype="int32", shape=(density,), labels=words.labels, is_sparse=True)
        return {self.keys[SOURCE]: inputs, self.weights_key: weights, **specs}

    @property
    def target_list(self) -> list[str]:
        """Return the keys of the targets."""
        return [key for key in super().target_list if key != self.weights_key]

    def seq_lengths(self) -> NDArray[Any]:
        """Return the number of slots with the postfix, [num_seqs]."""
        lines = range(len(self._files)) if self._chosen_lines() is None else self._chosen_lines()
        return np.asarray([len(self._slots(self._files.text(SOURCE, int(line)))) for line in lines or []], np.int64)

    def _keys_of(self, side: str) -> list[str]:
        return [self.keys[side], self.weights_key] if side == SOURCE else [self.keys[side]]

    def _read_side(self, side: str, text: str) -> dict[str, NDArray[Any]]:
        if side == TARGET:
            return super()._read_side(side, text)
        slots = self._slots(text)
        inputs = np.zeros((len(slots), self.opts.max_density), np.int32)
        weights = np.zeros((len(slots), self.opts.max_density), np.float32)
        for number, slot in enumerate(slots):
            if len(slot) > self.opts.max_density:
                raise TextDataError(
                    "there are %d alternatives, but max_density is %d" % (len(slot), self.opts.max_density)
                )
            inputs[number, : len(slot)] = self._ids[self.keys[SOURCE]].ids([word for word, _ in slot])
            weights[number, : len(slot)] = [weight for _, weight in slot]
        return {self.keys[SOURCE]: inputs, self.weights_key: weights}

    def _slots(self, text: str) -> list[list[tuple[str, float]]]:
        words = text.split()
        postfix: list[list[tuple[str, float]]] = [[(word, 1.0)] for word in self._postfix[SOURCE].split()]
        if words[:1] != [_ALTERNATIVES]:
            return [[(word, 1.0)] for word in words] + postfix
        return [[_alternative(part) for part in slot.split(_BETWEEN_ALTERNATIVES)] for slot in words[1:]] + postfix


def _alternative(text: str) -> tuple[str, float]:
    match = re.fullmatch(r"(.+)\|([^|]+)", text)
    try:
        return match.group(1), float(match.group(2))  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        raise TextDataError("expected 'word|weight' in a confusion network, got %r" % text) from None
