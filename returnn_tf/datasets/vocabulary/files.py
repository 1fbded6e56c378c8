"""Files with the labels of a vocabulary."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from returnn_tf.config.errors import TextDataError, TextError
from returnn_tf.datasets.core.safe_files import read_plain_pickle, read_text

_BPE_HEADER = "#version:"
_NUMBERED = re.compile(r"(\S+)([ \t])(-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)")
_LARGEST_ID = (1 << 31) - 2  # the number of labels has to be an int32, too
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class LabelTable:
    """The labels of a vocabulary.

    :param labels: by id
    :param ids: label -> id; of two labels for one id only one is among ``labels``
    """

    labels: tuple[str, ...]
    ids: Mapping[str, int]


def read_labels(path: str) -> list[str]:
    """Read the labels in the order of their ids, see `read_table`."""
    return list(read_table(path).labels)


def read_ids(path: str) -> dict[str, int]:
    """Read a pickled dict from label to id, which may have gaps.

    :raises DataError: the file is missing or holds something else, or an id is too large
    """
    content = read_plain_pickle(path, fix="Write a dict from words to numbers.")
    if not isinstance(content, dict) or not content or not all(type(i) is int and i >= 0 for i in content.values()):
        raise TextDataError("vocabulary %r: expected a dict {label: id, ...}." % path)
    label, largest = max(content.items(), key=lambda item: item[1])
    if largest > _LARGEST_ID:
        raise TextDataError("vocabulary %r: label %r has the id %d, but data is int32." % (path, label, largest))
    return {str(label): index for label, index in content.items()}


def read_unless_known(path: str, option: str, read: Callable[[str, int, int], _T]) -> _T:
    """Read a file by a cached function of its path, the time of its last change, and its size.

    :param option: which names the file, for messages
    :raises DataError: the file is missing or can't be read
    """
    try:
        status = os.stat(path)
        return read(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        raise TextDataError("%s %r does not exist (current directory: %s)." % (option, path, os.getcwd())) from None
    except OSError as exc:
        raise TextDataError("%s %r can't be read: %s" % (option, path, exc)) from exc


def read_table(path: str) -> LabelTable:
    """Read a vocabulary; a file that did not change is read once per process.

    :param path: a dict from label to id as pickle (``.pkl``), Python literal or JSON; a list of labels as pickle or
        JSON; or a text file with one label per line. Each of them may be compressed (``.gz``)
    :raises ConfigError: the ids have gaps
    :raises DataError: the file is missing or not a vocabulary
    """
    return read_unless_known(path, "vocab_file", _read_once)


@functools.lru_cache(maxsize=32)
def _read_once(path: str, changed: int, size: int) -> LabelTable:
    where = "vocab_file %r" % path
    if path.endswith((".pkl", ".pkl.gz")):
        content = read_plain_pickle(path, fix="Write the labels to a text file, one per line.")
    else:
        text = read_text(path)
        if text.startswith(_BPE_HEADER):
            raise TextDataError("%s holds the merges of BPE, not its labels; is it the bpe_file?" % where)
        is_json = path.endswith((".json", ".json.gz"))
        if not is_json and not text.startswith("{"):
            return table_of_lines(text, where)
        content = _parse(text, where, json_first=is_json)
    if isinstance(content, (list, tuple)):
        return table_of_labels(content, where)
    return table_of_dict(content, where)


def _parse(text: str, where: str, *, json_first: bool) -> Any:
    parsers: list[Any] = [ast.literal_eval, json.loads]
    faults = []
    for parse in reversed(parsers) if json_first else parsers:
        try:
            return parse(text.strip())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
            faults.append(str(exc)[:200])
    raise TextDataError("%s: expected a dict {label: id, ...}, but: %s." % (where, faults[0].rstrip(".")))


def table_of_lines(text: str, where: str) -> LabelTable:
    """Return the table of a text with one label per line; blanks belong to the label."""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    lines = [line[:-1] if line.endswith("\r") else line for line in lines]
    _refuse_numbers(lines, where)
    return table_of_labels(lines, where, "line %d", first=1)


def _refuse_numbers(lines: list[str], where: str) -> None:
    """Refuse files of other programs that have a count, a score or an id after each label.

    subword-nmt and fairseq write counts, SentencePiece log probabilities, both in descending order. Labels without a
    number, as users add them by hand, may be among them. Other labels may end with numbers, as "sil 0", "sil 1".

    :raises DataError: it is such a file
    """
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    found = [match for match in matches if match]
    others = [line for line, match in zip(lines, matches) if not match]
    if len(found) < max(2, len(others)) or any(" " in line or "\t" in line for line in others):
        return
    numbers = [float(match.group(3)) for match in found]
    descend = all(first >= second for first, second in zip(numbers, numbers[1:]))
    if (descend or numbers == list(range(len(lines)))) and len({match.group(1) for match in found}) == len(found):
        first = found[0]
        raise TextDataError(
            "%s: each line must be a label alone, but %r has a number, as subword-nmt get-vocab and SentencePiece "
            "write it; it would become part of the label. Remove the numbers: %s FILE > NEW; and add the labels that "
            "you need for unknown words and the end; or learn pieces by returnn-tf data bpe, which writes both files so"
            % (where, first.group(), "cut -f1" if first.group(2) == "\t" else "cut -d' ' -f1")
        )


def table_of_labels(labels: Iterable[Any], where: str, place: str = "id %d", *, first: int = 0) -> LabelTable:
    """Return the table of labels by id.

    :param where: prefix of errors
    :param place: how errors call the position of a label, counted from ``first``
    :raises DataError: there are none, or a label occurs twice
    """
    names = tuple(str(label) for label in labels)
    ids = {label: i for i, label in enumerate(names)}
    if not names:
        raise TextDataError("%s: there are no labels in it." % where)
    if len(ids) < len(names):
        twice = next(i for i, label in enumerate(names) if ids[label] != i)
        text = "%s: label %r occurs twice, as " + place + " and " + place + "."
        raise TextDataError(text % (where, names[twice], twice + first, ids[names[twice]] + first))
    return LabelTable(names, ids)


def table_of_dict(table: Any, where: str) -> LabelTable:
    """Return the table of a dict from label to id. Of two labels for one id the lexically last one is its name."""
    if not isinstance(table, Mapping) or not all(type(index) is int for index in table.values()):
        raise TextDataError("%s: expected a dict {label: id, ...} or a list of labels." % where)
    if not table:
        raise TextDataError("%s: there are no labels in it." % where)
    ids = {str(label): index for label, index in table.items()}
    names = {index: label for label, index in sorted(ids.items())}
    if min(names) != 0 or max(names) != len(names) - 1:
        gap = next((index for index in range(len(names)) if index not in names), len(names))
        raise TextError(
            "%s: the ids of its %d labels are from %d to %d, but must be 0, 1, 2, ... without gaps; none has the id %d."
            % (where, len(ids), min(names), max(names), gap)
        )
    return LabelTable(tuple(names[index] for index in range(len(names))), ids)
