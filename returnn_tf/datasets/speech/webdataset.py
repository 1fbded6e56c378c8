"""WebDataset: tar files whose members with the same name and different endings are a sequence."""

from __future__ import annotations

import io
import itertools
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.files import local_copy, matching_files
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.corpus import CorpusWithArrays, check_tags
from returnn_tf.datasets.speech.tar_shards import Member, read_member, tar_members
from returnn_tf.util.packed_strings import PackedStrings

_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
_ABOUT_SHARD = re.compile(r"__[^/]*__/")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MOST_SHARDS = 1_000_000
#: Among the endings that are wanted, which have no such signs.
_ANY_AUDIO, _TEXT = "<audio>", "<text>"
_AUDIO = ("flac", "wav", "ogg", "opus", "mp3", "m4a", "aac", "sph")


def shards_of(pattern: str) -> list[str]:
    """Return the shards that a text names: a path, with ``{000..123}`` and ``{a,b}``, or a pattern ``*.tar``.

    >>> shards_of("train-{08..11}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'train-11.tar']
    """
    found = filter(None, (_RANGE.search(pattern), _CHOICE.search(pattern)))
    match = min(found, key=lambda match: match.start(), default=None)
    if match is None:
        return (matching_files(pattern) if any(sign in pattern for sign in "*?[") else None) or [pattern]
    if match.re is _CHOICE:
        values = match[1].split(",")
    else:
        first, last = int(match[1]), int(match[2])
        if not 0 <= last - first < _MOST_SHARDS:
            raise FileError("the range %r of shards is empty, or has more than %d" % (match[0], _MOST_SHARDS))
        width = len(match[1]) if match[1].startswith("0") else 0
        values = [str(number).zfill(width) for number in range(first, last + 1)]
    parts = (shards_of(pattern[: match.start()] + value + pattern[match.end() :]) for value in values)
    return list(itertools.chain.from_iterable(parts))


@register_dataset()
class WebDataset(CorpusWithArrays):
    """Shards as the package webdataset writes them: tar files with ``KEY.flac``, ``KEY.txt``, ``KEY.json``, ...

    The members of a sequence follow each other. Their headers are read when the first epoch begins; from then on each
    sequence is read by its position, in any order, without that package.

    Data keys: ``data`` are features of the member with audio, ``classes`` labels, ``orth`` the bytes of the text,
    ``raw`` is the text, and those of ``arrays``: ``npy`` files, or ``cls``, the number of a class. For ``sorted`` etc.
    the length of a sequence is the number of bytes of its audio, else of its first array, else of its text.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "WebDataset", "path": "train-{000000..000123}.tar", "audio": {}, "text_member": "json",
    ...          "text_field": "text", "targets": {"class": "SentencePieces", "model_file": "spm.model"}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(CorpusWithArrays.Options):
        path: Union[str, list[Any]] = option(
            help="shard, pattern as 'train-*.tar' or 'train-{000..123}.tar', or a list of these"
        )
        arrays: Optional[dict[str, Any]] = option(
            None, help="{data key: ending of its members}, 'npy', 'ali.npy', 'cls', ..."
        )
        audio_member: Optional[str] = option(
            None,
            help="ending of the members with audio; default: %s, the first that is there" % ", ".join(_AUDIO),
            needs="audio",
        )
        text_member: Optional[str] = option("txt", help="ending of the members with the text; None: there is no text")
        text_field: Optional[str] = option(None, help="the members are JSON, and this is the field with the text")
        shard_in_tag: bool = option(False, help="tags are SHARD:KEY, for keys that are unique in a shard only")

    def setup(self) -> None:
        """Check all options, and read the first of each array; the shards are read when the first epoch begins."""
        self._audio_member, self._text_member = map(_lowered, (self.opts.audio_member, self.opts.text_member))
        super().setup()
        if self.opts.text_field is not None and self._text_member in (None, "txt"):
            raise FileError("%s: option 'text_field' needs a text_member with JSON, e.g. 'json'" % self._owner())

    def has_text(self) -> bool:
        """Return whether there are members with a text."""
        return self._text_member is not None

    def _checked_arrays(self) -> dict[str, str]:
        return {key: ending.lower() for key, ending in super()._checked_arrays().items()}

    def first_array(self, name: str) -> NDArray[Any]:
        """Return an array of the first sequence."""
        shard = shards_of(self.paths[0])[0]
        path = local_copy(shard, wanted=self.opts.use_cache_manager)
        key, members = next(samples_of(path, shard), ("", {}))
        if name not in members:
            raise FileDataError("%s: there is no member %r, only %s" % (_place(shard, key), name, _listed(members)))
        return _array_of(read_member(path, members[name].offset, members[name].size), name)

    def open_corpus(self) -> WebUtterances:
        """Index the shards."""
        opts = self.opts
        shards = list(itertools.chain.from_iterable(map(shards_of, self.paths)))
        return WebUtterances(
            [(shard, local_copy(shard, wanted=opts.use_cache_manager)) for shard in shards],
            text_member=self._text_member,
            text_field=opts.text_field,
            audio_members=None if self.features is None else (self._audio_member,) if self._audio_member else _AUDIO,
            arrays=list(self.arrays.values()),
            shard_in_tag=opts.shard_in_tag,
        )


def _lowered(ending: Optional[str]) -> Optional[str]:
    """Return an ending in small letters, as those of the members are compared."""
    return None if ending is None else ending.lower()


def samples_of(path: str, name: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yield key and members by ending of each sequence in a shard.

    :param name: of the shard, for errors
    :raises DataError: the shard is damaged, or a sequence has two members with the same ending
    """
    last, members = "", dict[str, Member]()
    for member in tar_members(path, name):
        match = _NAME.fullmatch(member.name)
        if match is None or _ABOUT_SHARD.match(member.name):
            continue
        key, ending = match[1], match[2].lower()
        if key != last and members:
            yield last, members
            members = {}
        last = key
        if ending in members:
            raise FileDataError("%s: it has two members %r" % (_place(name, key), ending))
        members[ending] = member
    if members:
        yield last, members


def _place(shard: str, key: str) -> str:
    return "shard %r, key %r" % (shard, key)


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _array_of(content: bytes, ending: str) -> NDArray[Any]:
    try:
        if ending.split(".")[-1] == "cls":
            return np.array(int(content.decode()), np.int32)
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
    except Exception as exc:  # numpy raises nearly anything for what is damaged
        raise FileDataError("its member %r cannot be read: %s: %s" % (ending, type(exc).__name__, exc)) from exc


class WebUtterances:
    """The sequences of shards: 4 bytes for each, 16 for each member that is needed, and the keys.

    :param shards: name and local path of each
    :param text_member: ending of the members with the text
    :param text_field: of these, if they are JSON
    :param audio_members: endings of members with audio, of which the first one counts; None: without audio
    :param arrays: endings of members with arrays
    :param shard_in_tag: tags begin with the shard
    """

    def __init__(
        self,
        shards: Sequence[tuple[str, str]],
        *,
        text_member: Optional[str],
        text_field: Optional[str],
        audio_members: Optional[Sequence[str]],
        arrays: Sequence[str],
        shard_in_tag: bool,
    ):
        self._shards = shards
        self._text_field = text_field
        self._shard_in_tag = shard_in_tag
        #: what a sequence has, in the order of its entries: endings of which the first one counts
        self._wanted: dict[str, Sequence[str]] = {} if audio_members is None else {_ANY_AUDIO: audio_members}
        self._wanted.update({name: (name,) for name in arrays})
        if text_member is not None:
            self._wanted[_TEXT] = (text_member,)
        self._names = {name: place for place, name in enumerate(self._wanted)}
        options = [list(map(list, self._wanted.values())), [name for name, _ in shards] if shard_in_tag else None]
        index = shared_index("webdataset", [path for _, path in shards], options, self._read)
        self.tags = PackedStrings.of_arrays(index.part("tags"))
        self._shard_of = index.arrays["shard_of"]
        self._table = index.arrays["members"].reshape(len(self.tags), -1, 2)

    def _read(self) -> SharedIndex:
        """Read the headers of all members: offset and size of those that are wanted, -1 for what is missing."""
        tags, shard_of, members_of = PackedStrings(), array("i"), array("q")
        for number, (shard, path) in enumerate(self._shards):
            count = len(tags)
            for key, members in samples_of(path, shard):
                tags.append("%s:%s" % (shard, key) if self._shard_in_tag else key)
                shard_of.append(number)
                for endings in self._wanted.values():
                    found = next((members[ending] for ending in endings if ending in members), None)
                    members_of.extend((-1, -1) if found is None else (found.offset, found.size))
            if len(tags) == count:
                raise FileDataError("shard %r has no members KEY.ENDING" % shard)
        check_tags(tags, lambda entry: "shard %r" % self._shards[shard_of[entry]][0])
        arrays = {"shard_of": np.asarray(shard_of), "members": np.asarray(members_of)}
        return SharedIndex({**named("tags", tags.arrays()), **arrays})

    def place(self, entry: int) -> str:
        """Return the shard of a sequence."""
        return "shard %r" % self._shards[self._shard_of[entry]][0]

    def _content(self, name: str, entry: int) -> bytes:
        """Return the content of a member."""
        offset, size = (int(number) for number in self._table[entry, self._names[name]])
        if offset < 0:
            raise FileDataError("it has no member %s" % " or ".join(map(repr, self._wanted[name])))
        return read_member(self._shards[self._shard_of[entry]][1], offset, size)

    def text(self, entry: int) -> str:
        """Return the text."""
        content = self._content(_TEXT, entry)
        try:
            text = content.decode("utf8")
            value = text.strip() if self._text_field is None else json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise FileDataError("its text cannot be read: %s" % exc) from exc
        if self._text_field is not None:
            value = value.get(self._text_field) if isinstance(value, dict) else value
        if not isinstance(value, str):
            raise FileDataError("its field %r is %s, but must be a string" % (self._text_field, shown(value)))
        return value

    def file_of(self, entry: int) -> str:
        """Return the shard and the key."""
        shard, tag = self._shards[self._shard_of[entry]][0], self.tags[entry]
        return tag if self._shard_in_tag else "%s:%s" % (shard, tag)

    def samples(self, entry: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate of the member with audio."""
        return features.read(self._content(_ANY_AUDIO, entry), name=self.file_of(entry))

    def array(self, name: str, entry: int) -> NDArray[Any]:
        """Return the array in the member with an ending."""
        return _array_of(self._content(name, entry), name)

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of the first member that is wanted."""
        return np.maximum(self._table[:, 0, 1], 0)

    def close(self) -> None:
        """Do nothing: shards are open only while they are read."""
