"""Vocabulary: labels by id, and text as a sequence of ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import TextDataError, TextError, did_you_mean
from returnn_tf.config.options import from_options, option
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.safe_files import read_literal, wanted_by
from returnn_tf.datasets.vocabulary.files import LabelTable, read_table, table_of_dict, table_of_labels

Path = Union[str, os.PathLike[str]]
Special = Union[None, str, int]

_FROM_FILE = ("unknown_label", "bos_label", "eos_label", "pad_label", "control_symbols", "user_defined_symbols")
_MAX_COMPARED = 2000  # comparing spellings takes long


@dataclass
class SpecialOptions:
    """The options of all vocabularies with special labels."""

    bos_label: Special = option(None, help="label or id of the beginning of a sequence")
    eos_label: Special = option(None, help="label or id of the end of a sequence")
    pad_label: Special = option(None, help="label or id of the padding")
    control_symbols: Optional[dict[str, Any]] = option(None, help="further labels or ids by name")
    user_defined_symbols: Optional[dict[str, Any]] = option(None, help="further labels or ids by name")
    seq_postfix: Optional[list[int]] = option(None, help="ids appended to every sequence")


@dataclass
class SharedOptions(SpecialOptions):
    """The options of the vocabularies whose labels are listed in a file or in the config."""

    vocab_file: Optional[Path] = option(
        None,
        help="the labels: a dict label -> id (pickle, Python or JSON), or a text file with one per line; .gz allowed",
    )
    labels: Union[None, list[Any], Callable[..., Any]] = option(
        None, help="the labels by id, or a function that returns them; instead of vocab_file"
    )
    special_symbols_via_file: Optional[Path] = option(
        None, help="a Python dict with unknown_label, bos_label, ... for those that are not given"
    )
    unknown_label: Special = option(
        "UNK", help="label or id of words that are not in the vocabulary; None or -1: such a word is an error"
    )
    num_labels: Optional[int] = option(None, help="the expected number of labels")


class Vocabulary:
    """Labels by id. A text is split at white space, each word is a label.

    A vocabulary in a config is a dict of ``Options``, see `make_vocabulary`.

    :param args: the options ``positional``, in this order
    :param owner: prefix of errors
    :param given: options by name
    :raises ConfigError: for wrong options
    :raises DataError: for a file that is missing or not a vocabulary

    >>> vocabulary = Vocabulary(labels=["a", "b", "<unk>"], unknown_label="<unk>", seq_postfix=[1])
    >>> vocabulary.get_seq("a c a"), vocabulary.get_seq_labels([0, 1])
    ([0, 2, 0, 1], 'a b')
    """

    @dataclass
    class Options(SharedOptions):
        single_whitespace_split: bool = option(
            False, help="labels may contain blanks; a text is the labels joined by one blank each"
        )

    positional: Sequence[str] = ("vocab_file", "seq_postfix", "unknown_label")
    #: Between two labels of a text.
    separator = " "
    num_labels = 0
    #: Whether texts are split at random.
    is_random = False

    def __init__(self, *args: Any, owner: str = "", **given: Any) -> None:
        given = {**dict(zip(self.positional, args)), **given}
        self._given = given
        self.where = "%s%s" % (owner + ": " if owner else "", type(self).__name__)
        self.opts: Any = from_options(self.Options, self._with_specials(given), where=self.where)
        table = self._table()
        self.labels: list[str] = list(table.labels)
        self.num_labels = len(self.labels)
        self._ids = table.ids
        self._set_specials()
        self.setup()

    def __repr__(self) -> str:
        return "<%s of %d labels>" % (type(self).__name__, self.num_labels)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self._given)

    def setup(self) -> None:
        """Prepare what a subclass needs besides the labels; called once."""

    @classmethod
    def labels_of(cls, options: Mapping[str, Any], where: str) -> list[str]:
        """Return the labels alone; options that do not affect them are not checked."""
        return list(_read_labels(options.get("vocab_file"), options.get("labels"), where).labels)

    # ---- labels

    def _with_specials(self, given: dict[str, Any]) -> dict[str, Any]:
        """Complete the options by those in ``special_symbols_via_file``."""
        path = given.get("special_symbols_via_file")
        if not isinstance(path, (str, os.PathLike)):
            return given
        with wanted_by("%s: special_symbols_via_file" % self.where):
            content = read_literal(os.fspath(path))
        unknown = set(content) - set(_FROM_FILE) if isinstance(content, dict) else {""}
        if unknown:
            raise TextDataError(
                "%s: special_symbols_via_file %r must hold a dict of some of %s."
                % (self.where, path, ", ".join(_FROM_FILE))
            )
        return {**content, **given}

    def _table(self) -> LabelTable:
        table = _read_labels(self.opts.vocab_file, self.opts.labels, self.where)
        expected = self.opts.num_labels
        if expected is not None and expected != len(table.labels):
            raise TextError(
                "%s: num_labels is %d, but there are %d labels." % (self.where, expected, len(table.labels))
            )
        return table

    def _set_specials(self) -> None:
        opts = self.opts
        self.unknown_label_id = self._special("unknown_label")
        self.unknown_label = None if self.unknown_label_id is None else self.labels[self.unknown_label_id]
        self.bos_label_id = self._special("bos_label")
        self.eos_label_id = self._special("eos_label")
        self.pad_label_id = self._special("pad_label")
        self.control_symbol_ids = self._special_group("control_symbols")
        self.user_defined_symbol_ids = self._special_group("user_defined_symbols")
        self.seq_postfix: list[int] = [self._checked_id("seq_postfix", index) for index in opts.seq_postfix or []]

    def _special(self, name: str) -> Optional[int]:
        value = getattr(self.opts, name)
        if value is None or (type(value) is int and value == -1):
            return None
        hint = "" if name in self._given or name != "unknown_label" else ", the default"
        return self._special_id("%s%s" % (name, hint), value)

    def _special_group(self, name: str) -> dict[str, int]:
        given = getattr(self.opts, name) or {}
        return {key: self._special_id("%s[%r]" % (name, key), value) for key, value in given.items()}

    def _special_id(self, name: str, value: Any) -> int:
        if not isinstance(value, str):
            return self._checked_id(name, value)
        if value not in self._ids:
            fix = "" if not name.startswith("unknown_label") else " Give unknown_label, None for none."
            hint = did_you_mean(value, self.labels[:_MAX_COMPARED], max_listed=5)
            raise TextError("%s: %s %r is not among the %d labels. %s%s" % (
                self.where, name, value, self.num_labels, hint, fix))  # fmt: skip
        return self._ids[value]

    def _checked_id(self, name: str, value: Any) -> int:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 0 <= value < self.num_labels:
            raise TextError(
                "%s: %s is %r, but must be a label or its id, from 0 to %d."
                % (self.where, name, value, self.num_labels - 1)
            )
        return int(value)

    def label_to_id(self, label: str, default: Any = None) -> Any:
        """Return the id of a label; of an unknown one ``default``, else that of the unknown label.

        :raises DataError: the label is unknown, and there is neither of them
        """
        index = self._ids.get(label)
        if index is not None:
            return index
        if default is not None:
            return default
        if self.unknown_label_id is None:
            raise TextDataError(
                "%s: %r is not among its %d labels, and unknown_label is None. Give unknown_label, or correct the text."
                % (self.where, label, self.num_labels)
            )
        return self.unknown_label_id

    def id_to_label(self, index: int, default: Optional[str] = None) -> str:
        """Return the label of an id; of an unknown one ``default`` if given, else DataError."""
        if 0 <= index < self.num_labels:
            return self.labels[index]
        if default is not None:
            return default
        raise TextDataError("%s: there is no label %d, only 0 to %d." % (self.where, index, self.num_labels - 1))

    def is_id_valid(self, index: int) -> bool:
        """Return whether a label has this id."""
        return 0 <= index < self.num_labels

    @property
    def vocab(self) -> dict[str, int]:
        """Return the ids by label."""
        return dict(self._ids)

    # ---- text

    def set_random_seed(self, seed: Union[int, Sequence[int]]) -> None:
        """Begin a sequence of random numbers, if texts are split at random; others have no effect."""

    def get_seq(self, sentence: str) -> list[int]:
        """Return the ids of a text, with ``seq_postfix``.

        :raises DataError: a word is unknown and there is no unknown label
        """
        ids, unknown, pieces = self._ids, self.unknown_label_id, self.pieces(sentence)
        if unknown is None:
            return [self.label_to_id(piece) for piece in pieces] + self.seq_postfix
        return [ids.get(piece, unknown) for piece in pieces] + self.seq_postfix

    def pieces(self, sentence: str) -> list[str]:
        """Split a text into labels, and words which are no labels."""
        return self._split_at_blanks(sentence) if self.opts.single_whitespace_split else sentence.split()

    def _split_at_blanks(self, sentence: str) -> list[str]:
        """Split so that the pieces joined by a blank are the text; the longest label comes first."""
        parts = sentence.split(" ") if sentence else []
        longest = 1 + max(label.count(" ") for label in self.labels)
        pieces: list[str] = []
        start = 0
        while start < len(parts):
            candidates = (parts[start : start + size] for size in range(longest, 0, -1))
            found = next((part for part in candidates if " ".join(part) in self._ids), parts[start : start + 1])
            pieces.append(" ".join(found))
            start += len(found)
        return pieces

    def get_seq_labels(self, seq: Iterable[int]) -> str:
        """Return the text of a sequence of ids; DataError for an id without label."""
        return self.separator.join(self.id_to_label(int(index)) for index in seq)

    def serialize_labels(self, data: NDArray[Any]) -> str:
        """Return the text of an array of ids; of more than one axis as ``[a b],[c d]``."""
        data = np.asarray(data)
        if data.ndim == 0:
            return self.id_to_label(int(data))
        if data.ndim == 1:
            return self.get_seq_labels(data)
        return ",".join("[%s]" % self.serialize_labels(row) for row in data)


def _rebuild(cls: type[Vocabulary], given: dict[str, Any]) -> Vocabulary:
    """Recreate a vocabulary in another process."""
    return cls(**given)


def _read_labels(vocab_file: Any, labels: Any, where: str) -> LabelTable:
    if (vocab_file is None) == (labels is None):
        raise TextError("%s: give either 'vocab_file' or 'labels'." % where)
    if vocab_file is not None:
        with wanted_by(where):
            return read_table(os.fspath(vocab_file))
    content = result_of_config("%s, labels" % where, labels) if callable(labels) else labels
    if isinstance(content, Mapping):
        return table_of_dict(content, "%s, labels" % where)
    if not isinstance(content, (list, tuple)):
        raise TextError("%s: labels must be a list, got %s." % (where, type(content).__name__))
    return table_of_labels(content, "%s, labels" % where)
