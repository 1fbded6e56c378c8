"""The options ``seq_list_file`` and ``seq_lens_file`` of MetaDataset: which sequences belong together, and how long."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.per_key import reference_key


def read_tag_lists(given: Any, names: Collection[str], *, owner: str) -> dict[str, Sequence[str]]:
    """Return the tags of each dataset; the tags at one position belong together.

    :param given: a file for all datasets, or a dict of dataset -> file. A file is a text file with one tag per line
        (.gz allowed) or a pickle (.pkl) of a list, or of a dict of dataset -> list
    :param names: the datasets
    :param owner: how errors begin
    :raises ConfigError: the dict lacks a dataset
    :raises DataError: a file is missing or holds something else, lacks a dataset, or the lists differ in length
    """
    where = "%s: option 'seq_list_file'" % owner
    if isinstance(given, Mapping):
        for name in names:
            if name not in given:
                raise ConfigError("%s has no list for dataset %r. %s" % (where, name, did_you_mean(name, given)))
        lists: dict[str, Sequence[str]] = {name: _one_list(given[name], name, where) for name in names}
    elif isinstance(given, str):
        lists = _lists_of_file(given, names, where)
    else:
        raise ConfigError("%s is %r, but must be a file, or a dict of dataset -> file" % (where, given))
    _check_sizes(lists, where)
    return lists


def read_lengths(path: str, tags: Sequence[str], *, owner: str) -> list[float]:
    """Return the lengths of sequences, from a JSON file of tag -> length, or tag -> data key -> length.

    :raises DataError: the file is missing or holds something else, or lacks a sequence
    """
    where = "%s: seq_lens_file %r" % (owner, path)
    with safe_files.wanted_by("%s: option 'seq_lens_file'" % owner):
        text = safe_files.read_text(path)
    try:
        table = json.loads(text)
    except json.JSONDecodeError as exc:
        raise DataError("%s is no JSON: %s" % (where, exc)) from None
    if not isinstance(table, Mapping):
        raise DataError("%s must hold a dict of tag -> lengths, not %s" % (where, type(table).__name__))
    return [_length_of(tag, table.get(tag), where) for tag in tags]


def _length_of(tag: str, entry: Any, where: str) -> float:
    if isinstance(entry, Mapping) and entry:
        entry = entry[reference_key(entry)]
    if not safe_files.is_length(entry):
        raise DataError("%s has no length of sequence %r" % (where, tag))
    length: float = entry
    return length


def _lists_of_file(path: str, names: Collection[str], where: str) -> dict[str, Sequence[str]]:
    if not path.endswith((".pkl", ".pkl.gz")):
        return dict.fromkeys(names, _text_list(path, where))
    with safe_files.wanted_by(where):
        content = safe_files.read_plain_pickle(path)
    if not isinstance(content, Mapping):
        return dict.fromkeys(names, _checked(content, path, where))
    for name in names:
        if name not in content:
            text = "%s: file %r has no list for dataset %r. %s"
            raise DataError(text % (where, path, name, did_you_mean(name, [str(known) for known in content])))
    return {name: _checked(content[name], path, where) for name in names}


def _one_list(path: Any, name: str, where: str) -> Sequence[str]:
    if not isinstance(path, str):
        raise ConfigError("%s: the list of dataset %r is %r, but must be a file" % (where, name, path))
    return _lists_of_file(path, [name], where)[name]


def _text_list(path: str, where: str) -> Sequence[str]:
    with safe_files.wanted_by(where):
        tags = safe_files.read_seq_tags(path)
    return _checked(tags, path, where)


def _checked(tags: Any, path: str, where: str) -> Sequence[str]:
    if not isinstance(tags, (list, tuple)):
        raise DataError("%s: file %r must hold a list of tags, not %s" % (where, path, type(tags).__name__))
    for position, tag in enumerate(tags):
        if not isinstance(tag, str):
            raise DataError("%s: file %r: entry %d is %r, not a sequence tag" % (where, path, position, tag))
    if not tags:
        raise DataError("%s: file %r is empty" % (where, path))
    return list(tags)


def _check_sizes(lists: Mapping[str, Sequence[str]], where: str) -> None:
    sizes = {name: len(tags) for name, tags in lists.items()}
    if len(set(sizes.values())) > 1:
        text = ", ".join("%d for %r" % (size, name) for name, size in sizes.items())
        raise DataError("%s: the lists must be equally long, but there are %s tags" % (where, text))
