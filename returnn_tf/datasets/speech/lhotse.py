"""LhotseDataset: manifests of cuts as Lhotse writes them, with audio files or in shards (Lhotse Shar)."""

from __future__ import annotations

import bisect
import glob
import os
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.audio_range import channel_of, read_part
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.files import is_url, local_copy, matching_files, path_or_content
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.corpus import CorpusDataset, check_tags, hundredths
from returnn_tf.datasets.speech.manifests import joined, number_of_seconds
from returnn_tf.datasets.speech.tar_shards import read_member, tar_members
from returnn_tf.datasets.text.json_lines import JsonLines, ObjectWriter, StoredObjects
from returnn_tf.util.packed_strings import PackedStrings

_MANIFEST = (".jsonl", ".jsonl.gz")
_NEEDED = ("start", "channel", "recording", "supervisions")
_CUTS, _RECORDING = "cuts", "recording"
#: The end of the path of cuts in the format Lhotse Shar, numbered if there are several shards.
_SHARD = re.compile(r"/%s((?:\.\d+)?)\.jsonl(?:\.gz)?" % _CUTS)
#: Endings of members about the data, and of data that a cut lacks.
_ABOUT, _ABSENT = (".json", ".nometa"), ".nodata"
_INSTEAD = "write its audio by Lhotse, as shards (CutSet.to_shar) or files (CutSet.save_audios)"


@register_dataset()
class LhotseDataset(CorpusDataset):
    """Cuts of Lhotse: manifests of cuts, ``cuts.jsonl.gz``, or folders in the format Lhotse Shar.

    The files are read here, in any order, since that package needs torch. So cuts are parts of recordings, of one or
    several channels; mixtures, padding and transforms that Lhotse would compute while it reads are an error, as are
    commands in place of files. The text is that of all supervisions, joined by blanks.

    Data keys: ``data`` are features, ``classes`` labels, ``orth`` the bytes of the text, ``raw`` is the text. For
    ``sorted`` etc. the length of a sequence is its ``duration``. The tag is the id of the cut.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "LhotseDataset", "path": "data/cuts_train.jsonl.gz", "audio": {}, "targets": None}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(CorpusDataset.Options):
        path: Union[str, list[Any]] = option(
            help="manifest .jsonl or .jsonl.gz of cuts, folder with cuts.*.jsonl.gz and recording.*.tar, or a list"
        )
        audio_dir: Optional[str] = option(
            None,
            help="directory of audio files with a relative path; default: the current one, as in Lhotse",
            needs="audio",
        )
        with_text: bool = option(True, help="False: the supervisions have no texts")

    def has_text(self) -> bool:
        """Return whether the supervisions have texts."""
        return bool(self.opts.with_text)

    def open_corpus(self) -> LhotseUtterances:
        """Index the cuts."""
        opts = self.opts
        manifests, shards = [], []
        for path in self.paths:
            if path.endswith(_MANIFEST):
                manifests.append(path)
                shards.append("")
                continue
            folder = (path if is_url(path) else glob.escape(path)).rstrip("/")
            found = [file for file in matching_files("%s/%s.*" % (folder, _CUTS)) if _number_of_shard(file) is not None]
            if not found:
                text = "%r is neither a manifest .jsonl or .jsonl.gz nor a folder with cuts.000000.jsonl.gz etc."
                raise FileDataError((text + " (current directory: %s)") % (path, os.getcwd()))
            manifests += found
            shards += [_tar_beside(file) if self.features is not None else "" for file in found]
        return LhotseUtterances(
            manifests, shards, folder=opts.audio_dir or "", use_cache_manager=opts.use_cache_manager
        )


def _number_of_shard(cuts: str) -> Optional[str]:
    """Return ".000012" for cuts.000012.jsonl.gz, "" for cuts.jsonl.gz, None for a file that has another name."""
    match = _SHARD.fullmatch(cuts[cuts.rfind("/") :])
    return None if match is None else match[1]


def _tar_beside(cuts: str) -> str:
    """Return the path of the shard with the audio of cuts: recording.000012.tar for cuts.000012.jsonl.gz."""
    return "%s/%s%s.tar" % (cuts.rpartition("/")[0], _RECORDING, _number_of_shard(cuts))


class LhotseUtterances:
    """The cuts of manifests.

    :param manifests: files with lines of cuts
    :param shards: for each the tar file with their audio, or ""
    :param folder: of audio files with a relative path
    """

    def __init__(self, manifests: Sequence[str], shards: Sequence[str], *, folder: str, use_cache_manager: bool):
        self._folder = folder
        self._use_cache_manager = use_cache_manager
        self._manifests = manifests
        self._shards = [(shard, local_copy(shard, wanted=use_cache_manager) if shard else "") for shard in shards]
        paths = [local_copy(path, wanted=use_cache_manager) for path in manifests]
        paths += [path for _, path in self._shards if path]
        index = shared_index("lhotse", paths, [bool(shard) for shard in shards], self._read)
        self.tags = PackedStrings.of_arrays(index.part("tags"))
        self._cuts = StoredObjects(index.part("cuts"))
        self._bounds: list[int] = index.facts["bounds"]
        self._seconds, self._members = index.arrays["seconds"], index.arrays["members"].reshape(-1, 2)

    def _lines_of(self, manifest: str) -> JsonLines:
        return JsonLines([manifest], use_cache_manager=self._use_cache_manager, shared=False)

    def _read(self) -> SharedIndex:
        """Read the cuts, and find their audio."""
        tags, seconds, cuts = PackedStrings(), array("d"), ObjectWriter()
        bounds = [0]  # the first cut of each manifest
        members: list[NDArray[np.int64]] = []
        for manifest, (shard, path) in zip(self._manifests, self._shards):
            lines = self._lines_of(manifest)
            numbers = array("q")
            for number, line in lines.entries():
                try:
                    tag, duration = _cut(line)
                except FileDataError as exc:
                    raise FileDataError("%s: %s" % (lines.place(number), exc)) from None
                tags.append(tag)
                seconds.append(duration)
                numbers.append(number)
                cuts.add({name: line[name] for name in _NEEDED if name in line}, number)
            own = tags.chosen(range(bounds[-1], len(tags)))
            members.append(_members(own, shard, path, partial(_place_in, lines, numbers)))
            bounds.append(len(tags))
        arrays = cuts.arrays()
        check_tags(tags, lambda entry: self._place(bounds, int(arrays["places"][entry]), entry))
        more = {"seconds": np.asarray(seconds), "members": np.concatenate(members).reshape(-1)}
        return SharedIndex({**named("tags", tags.arrays()), **named("cuts", arrays), **more}, {"bounds": bounds})

    def _place(self, bounds: Sequence[int], number: int, entry: int) -> str:
        return self._lines_of(self._manifests[bisect.bisect_right(bounds, entry) - 1]).place(number)

    def _file_of(self, entry: int) -> int:
        return bisect.bisect_right(self._bounds, entry) - 1

    def place(self, entry: int) -> str:
        """Return manifest and line of a cut."""
        return self._place(self._bounds, self._cuts.place(entry), entry)

    def _get(self, entry: int) -> dict[str, Any]:
        return self._cuts.get(entry)

    def text(self, entry: int) -> str:
        """Return the texts of all supervisions."""
        given = [supervision.get("text") for supervision in _dicts(self._get(entry), "supervisions")]
        texts = [text for text in given if isinstance(text, str)]
        if not texts or len(texts) < len(given):
            raise FileDataError("its supervisions have no texts; set with_text=False if none have")
        return " ".join(texts)

    def file_of(self, entry: int) -> str:
        """Return the audio file, or the place in the shard."""
        shard, _ = self._shards[self._file_of(entry)]
        if shard:
            return "%s:%s" % (shard, self.tags[entry])
        source = _source(self._get(entry))["source"]
        if not isinstance(source, str):
            raise FileDataError("the source of its recording is %s, but must be a path" % shown(source))
        return joined(self._folder, source)

    def samples(self, entry: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate of a cut."""
        cut, name = self._get(entry), self.file_of(entry)
        shard, path = self._shards[self._file_of(entry)]
        start, seconds = number_of_seconds(cut.get("start"), "start") or None, float(self._seconds[entry])
        if shard:
            offset, size = (int(number) for number in self._members[entry])
            if offset < 0:
                raise FileDataError("shard %r has no audio of the cut" % shard)
            return read_part(read_member(path, offset, size), start, seconds, features.opts.decoder, name=name)
        source = _source(cut)
        if source["type"] == "shar":
            raise FileDataError("its audio is in a shard; give the folder as 'path', not the manifest")
        if source["type"] not in ("file", "url"):
            text = "its audio is a source of the type %s, but only files, addresses and shards are read; %s"
            raise FileDataError(text % (shown(source["type"]), _INSTEAD))
        content = path_or_content(name, wanted=self._use_cache_manager)
        samples, rate = read_part(content, start, seconds, features.opts.decoder, name=name)
        there = _channels(source, "channels")
        columns = [channel_of(samples, there.index(channel), name) for channel in _channels(cut, "channel")]
        return np.stack(columns, axis=1) if isinstance(cut.get("channel"), list) else columns[0], rate

    def lengths(self) -> NDArray[np.int64]:
        """Return the durations in units of 10 ms."""
        return hundredths(self._seconds)

    def close(self) -> None:
        """Do nothing: shards are open only while they are read."""


def _place_in(lines: JsonLines, numbers: Sequence[int], row: int) -> str:
    """Return where a cut of a manifest is declared, of which the number of each line with a cut is known."""
    return lines.place(numbers[row])


def _members(tags: Sequence[str], shard: str, path: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return position and size of the audio of cuts in their shard, [cuts, 2]; -1: it has none there.

    :param path: under which the shard is read; "": there is none
    :param place: returns where a cut is declared
    :raises DataError: the shard lacks a cut
    """
    members = np.full((len(tags), 2), -1, np.int64)
    if not shard:
        return members
    found = {os.path.splitext(m.name)[0]: m for m in tar_members(path, shard) if not m.name.endswith(_ABOUT)}
    for row, tag in enumerate(tags):
        member = found.get(tag)
        if member is None:
            raise FileDataError("%s: shard %r lacks the cut %r" % (place(row), shard, tag))
        if not member.name.endswith(_ABSENT):
            members[row] = member.offset, member.size
    return members


def _cut(line: Mapping[str, Any]) -> tuple[str, float]:
    """Return id and duration of a cut.

    :raises DataError: it is something else, or Lhotse would have to compute its audio
    """
    kind = line.get("type")
    if kind not in ("MonoCut", "MultiCut"):
        if kind in ("MixedCut", "PaddingCut"):
            raise FileDataError("it is a %s; %s" % (kind, _INSTEAD))
        what = "recordings" if "sources" in line else "supervisions" if "recording_id" in line else "something else"
        raise FileDataError("it has %s, but must have cuts; `lhotse cut simple` makes them" % what)
    tag, seconds = line.get("id"), number_of_seconds(line.get("duration"), "duration")
    if not isinstance(tag, str) or not tag or seconds is None:
        raise FileDataError("'id' is %s and 'duration' %s, but it needs both" % (shown(tag), shown(seconds)))
    return tag, seconds


def _source(cut: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the source of the recording of a cut that has its channels.

    :raises DataError: there is none, or the recording is transformed
    """
    recording = cut.get("recording")
    if not isinstance(recording, Mapping):
        raise FileDataError("the cut has no recording; set audio=None to read the text alone")
    transforms = _dicts(recording, "transforms")
    if transforms:
        names = ", ".join(str(transform.get("name")) for transform in transforms)
        raise FileDataError("its recording is transformed (%s); %s" % (names, _INSTEAD))
    wanted = _channels(cut, "channel")
    for source in _dicts(recording, "sources"):
        if set(wanted) <= set(_channels(source, "channels")) and {"source", "type"} <= set(source):
            return source
    raise FileDataError("none of the sources of its recording has the channels %s" % sorted(wanted))


def _dicts(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a list of objects in a manifest, which may be missing; DataError if it is something else."""
    value = content.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise FileDataError("%r is %s, but must be a list of objects" % (name, shown(value)))
    return value


def _channels(content: Mapping[str, Any], name: str) -> list[int]:
    """Return the numbers of channels in a manifest, by default that of the first one; DataError for others."""
    value = content.get(name, 0)
    value = value if isinstance(value, list) else [value]
    if not value or not all(type(channel) is int for channel in value):
        raise FileDataError("%r is %s, but must be a number of a channel, or a list of these" % (name, shown(value)))
    return value
