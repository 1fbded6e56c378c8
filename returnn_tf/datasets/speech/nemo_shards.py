"""The audio of tarred corpora of NeMo: which member of which tar file is that of a line of a manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.speech.tar_shards import Member, read_member, tar_members
from returnn_tf.datasets.speech.webdataset import shards_of
from returnn_tf.util.packed_strings import PackedStrings

#: A range of numbers in a path, with what NeMo takes for braces.
_RANGE = re.compile(r"(?:\{|\(|\[|<|_OP_)(\d+)\.\.(\d+)(?:\}|\)|\]|>|_CL_)")
_NUMBER = re.compile(r"_(\d+)")
_PART = re.compile(r"(.+)-sub\d+")
#: Of an utterance or file of which the number of the shard is not known.
ANY = -1


def expanded(path: str) -> list[str]:
    """Return the paths that one with a range of numbers stands for; one without stands for itself.

    >>> expanded("manifest__OP_0..1_CL_.json")
    ['manifest_0.json', 'manifest_1.json']
    """
    braced = _RANGE.sub(r"{\1..\2}", path)
    return shards_of(braced) if _RANGE.search(path) else [path]


def numbers_of(paths: Sequence[str]) -> list[int]:
    """Return the last number behind a ``_`` in the name of each file, if all files have different ones; else ANY."""
    found = [_NUMBER.findall(os.path.basename(path)) for path in paths]
    numbers = [int(digits[-1]) for digits in found if digits]
    return numbers if len(set(numbers)) == len(paths) else [ANY] * len(paths)


class NeMoShards:
    """Tar files with the audio of manifests.

    :param patterns: paths, which may have ranges of numbers
    :param use_cache_manager: the option of the dataset
    """

    def __init__(self, patterns: Sequence[str], *, use_cache_manager: bool):
        self.paths = [shard for pattern in patterns for shard in shards_of(_RANGE.sub(r"{\1..\2}", pattern))]
        self.local_paths = [local_copy(path, wanted=use_cache_manager) for path in self.paths]

    def find(self, names: PackedStrings, numbers: NDArray[np.int64], place: Callable[[int], str]) -> NDArray[np.int64]:
        """Return shard, position and size of the audio of each utterance, [utterances, 3].

        :param names: of the audio files
        :param numbers: of their shards, or ANY
        :param place: returns where an utterance is declared
        :raises DataError: a shard is missing or damaged, or lacks the audio of an utterance
        """
        of_shards = np.asarray(numbers_of(self.paths))
        found = np.empty((len(names), 3), np.int64)
        groups: list[tuple[Sequence[int], Sequence[int]]]
        if ANY in of_shards or ANY in numbers:
            groups = [(range(len(self.paths)), range(len(names)))]
        else:
            unknown = np.flatnonzero(~np.isin(numbers, of_shards))
            if len(unknown):
                text = "%s: its audio is in the shard %d, which is none of the %d of tarred_audio_filepaths"
                raise FileDataError(text % (place(int(unknown[0])), numbers[unknown[0]], len(self.paths)))
            groups = [([shard], np.flatnonzero(numbers == number).tolist()) for shard, number in enumerate(of_shards)]
        for shards, entries in groups:
            members = _Members()
            for shard in shards:
                for member in tar_members(self.local_paths[shard], self.paths[shard]):
                    members.add(shard, member)
            where = "shard %r" % self.paths[shards[0]] if len(shards) == 1 else "tarred_audio_filepaths"
            for entry, name in zip(entries, names.chosen(entries)):
                try:
                    found[entry] = members.find(name)
                except LookupError as exc:
                    raise FileDataError("%s: %s has %s %r" % (place(entry), where, exc, name)) from None
        return found

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Return the content of a member."""
        return read_member(self.local_paths[shard], offset, size)


class _Members:
    """Members of tar files by the names of audio files, of which NeMo compares what is before the ending only."""

    def __init__(self) -> None:
        self._found: dict[str, Optional[tuple[int, int, int]]] = {}  # None: several have this name
        self._stems: dict[str, Optional[tuple[int, int, int]]] = {}

    def add(self, shard: int, member: Member) -> None:
        """Add a member of a shard."""
        place = shard, member.offset, member.size
        for name, places in ((member.name, self._found), (_stem(member.name), self._stems)):
            places[name] = None if name in places else place

    def find(self, name: str) -> tuple[int, int, int]:
        """Return shard, position and size of the member for an audio file; LookupError if there is not one.

        The parts of a long file may be numbered, ``name-sub1.wav`` and so on, as they are in lines of manifests.
        """
        stem = _stem(name)
        part = _PART.fullmatch(stem)
        for known, places in (
            (name, self._found),
            (stem, self._stems),
            *([(part[1], self._stems)] if part is not None else []),
        ):
            if known in places:
                place = places[known]
                if place is None:
                    raise LookupError("several members for")
                return place
        raise LookupError("no member for")


def _stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]
