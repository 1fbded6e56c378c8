"""NeMoDataset: the manifests of NVIDIA NeMo, one JSON object per line for each utterance."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.audio_range import read_part
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import path_of, read_text
from returnn_tf.datasets.files import exists, path_or_content
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.corpus import CorpusDataset, check_tags, hundredths
from returnn_tf.datasets.speech.manifests import LONGEST, folder_of, joined, number_of_seconds
from returnn_tf.datasets.speech.nemo_shards import ANY, NeMoShards, expanded, numbers_of
from returnn_tf.datasets.text.json_lines import JsonLines, JsonTable
from returnn_tf.util.packed_strings import PackedStrings

_PATH, _SHARD, _SKIPPED = "audio_filepath", "shard_id", "_skipme"
_UNKNOWN = -1.0


@register_dataset()
class NeMoDataset(CorpusDataset):
    """Manifests of NVIDIA NeMo: files of lines such as ``{"audio_filepath": "a.wav", "duration": 1.5, "text": "..."}``.

    ``audio_filepath`` is relative to the folder of its manifest. The utterance is the part of the file from ``offset``
    on (default: 0) that is ``duration`` long (default: the rest), both in seconds; at most 0.1 s are taken for rounding
    at the end of the file. The tag is ``audio_filepath``, with an offset ``audio_filepath@offset``, or the value of
    ``tag_field``.

    ``tarred_audio_filepaths`` are the tar files of a tarred corpus. An utterance is in the one with the number
    ``shard_id`` in its line, else with the number of its manifest, else in any of them. Without a text,
    ``text_filepath`` is the file with it. Lines with a true ``_skipme`` are left out.

    The lines are indexed when the first epoch begins, once for all processes; they stay on the disk.

    Data keys: ``data`` are features, ``classes`` labels, ``orth`` the bytes of the text, ``raw`` is the text. For
    ``sorted`` etc. the length of a sequence is its ``duration``.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "NeMoDataset", "path": ["a/manifest.json", "b/manifest.json"], "audio": {},
    ...          "targets": {"class": "SentencePieces", "model_file": "spm.model"}, "seq_ordering": "laplace:.1000"}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(CorpusDataset.Options):
        path: Union[str, list[Any]] = option(
            help="manifest, .gz allowed, 'manifest_{0..127}.json' or with _OP_ and _CL_ as braces, or a list of these"
        )
        tarred_audio_filepaths: Union[None, str, list[Any]] = option(
            None, help="tar files with the audio, 'audio_{0..127}.tar' or a list", needs="audio"
        )
        audio_dir: Optional[str] = option(
            None,
            help="directory of audio files with a relative path; default: that of the manifest",
            needs="audio",
            unless="tarred_audio_filepaths",
        )
        tag_field: Optional[str] = option(None, help="field of the lines with the tag, e.g. 'id'")
        text_field: Optional[str] = option(
            "text", help="field of the lines with the transcription; None: there are no texts"
        )

    def has_text(self) -> bool:
        """Return whether the lines have a text."""
        return self.opts.text_field is not None

    def _checked_paths(self) -> list[str]:
        tarred = self.opts.tarred_audio_filepaths
        given = [] if tarred is None else [tarred] if isinstance(tarred, str) else list(tarred)
        if tarred is not None and not given:
            raise FileError("%s: option 'tarred_audio_filepaths' is empty" % self._owner())
        where = "%s: option 'tarred_audio_filepaths'" % self._owner()
        self._tarred = [path_of(path, where=where) for path in given]
        return list(itertools.chain.from_iterable(map(expanded, super()._checked_paths())))

    def open_corpus(self) -> NeMoUtterances:
        """Index the lines."""
        opts = self.opts
        shards = None
        if self._tarred and self.features is not None:
            shards = NeMoShards(self._tarred, use_cache_manager=opts.use_cache_manager)
        return NeMoUtterances(
            self.paths,
            shards,
            folder=opts.audio_dir,
            tag_field=opts.tag_field,
            text_field=opts.text_field,
            use_cache_manager=opts.use_cache_manager,
        )


class NeMoUtterances:
    """The lines of manifests.

    :param shards: with the audio; None: it is in files of its own
    :param folder: of audio files with a relative path; None: that of the manifest
    :param tag_field: with the tag; None: made of the path and the offset
    :param text_field: with the transcription; None: there is none
    """

    def __init__(
        self,
        paths: Sequence[str],
        shards: Optional[NeMoShards],
        *,
        folder: Optional[str],
        tag_field: Optional[str],
        text_field: Optional[str],
        use_cache_manager: bool,
    ):
        self._folders = [folder_of(path) if folder is None else folder for path in paths]
        self._shards = shards
        self._tag_field = tag_field
        self._text_field = text_field
        self._use_cache_manager = use_cache_manager
        self._lines = JsonLines(paths, use_cache_manager=use_cache_manager)
        self._paths = paths
        files, options = self._lines.local_paths, [tag_field, None if shards is None else [list(paths), shards.paths]]
        index = shared_index("nemo", files + (shards.local_paths if shards is not None else []), options, self._read)
        self.tags = PackedStrings.of_arrays(index.part("tags"))
        self._numbers, self._seconds = index.arrays["numbers"], index.arrays["seconds"]
        members = index.arrays.get("members")
        self._members = None if members is None else members.reshape(-1, 3)

    def _read(self) -> SharedIndex:
        """Read tag, line and duration of each utterance, and find its audio in shards."""
        tags, numbers, seconds = PackedStrings(), array("q"), array("d")
        files, shard_of = PackedStrings(), array("q")  # where its audio is, for shards
        kinds: dict[str, type] = {_PATH: str, _SHARD: float, _SKIPPED: str, "offset": float, "duration": float}
        if self._tag_field is not None:
            kinds[self._tag_field] = str
        for number, found in self._lines.tables(kinds):
            columns = _plain(found, self._tag_field) if isinstance(found, JsonTable) else None
            if columns is not None:
                tags.extend_texts(columns[0])
                seconds.extend(columns[1])
                numbers.extend(range(number, number + len(columns[0])))
                if self._shards is not None:
                    files.extend_texts(columns[2])
                    shard_of.extend(map(int, columns[3] or [ANY] * len(columns[0])))
                continue
            for row, line in enumerate(found.rows() if isinstance(found, JsonTable) else [found]):
                if line.get(_SKIPPED):
                    continue
                try:
                    tags.append(_tag(line, self._tag_field))
                    duration = number_of_seconds(line.get("duration"), "duration")
                    if self._shards is not None:
                        shard_of.append(_shard_id(line))
                        files.append(line[_PATH])
                except FileDataError as exc:
                    raise FileDataError("%s: %s" % (self._lines.place(number + row), exc)) from None
                seconds.append(_UNKNOWN if duration is None else duration)
                numbers.append(number + row)

        def place(entry: int) -> str:
            return self._lines.place(numbers[entry])

        check_tags(tags, place)
        arrays = {"numbers": np.asarray(numbers), "seconds": np.asarray(seconds)}
        if self._shards is not None:
            of_shards = self._numbers_of_shards(np.asarray(shard_of), arrays["numbers"])
            arrays["members"] = self._shards.find(files, of_shards, place).reshape(-1)
        return SharedIndex({**named("tags", tags.arrays()), **arrays})

    def _numbers_of_shards(self, given: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the shard of each utterance: that of its line, else that of its manifest, or ANY."""
        of_manifests = np.asarray(numbers_of(self._paths) if len(self._paths) > 1 else [ANY])
        files = np.searchsorted(self._lines.ends, numbers, side="right")
        return np.where(given == ANY, of_manifests[files], given)

    def place(self, entry: int) -> str:
        """Return manifest and line of an utterance."""
        return self._lines.place(int(self._numbers[entry]))

    def _get(self, entry: int) -> Mapping[str, Any]:
        return self._lines.get(int(self._numbers[entry]))

    def text(self, entry: int) -> str:
        """Return the transcription."""
        line = self._get(entry)
        assert self._text_field is not None
        if self._text_field not in line and "text_filepath" in line:
            return self._text_in(line["text_filepath"], self._lines.file_of(int(self._numbers[entry])))
        text = line.get(self._text_field)
        if not isinstance(text, str):
            missing = "there is no %r, only %s; set text_field=None if there are no texts" % (
                self._text_field,
                ", ".join(sorted(map(repr, line))),
            )
            wrong = "%r is %s, but must be a string" % (self._text_field, shown(text))
            raise FileDataError(wrong if self._text_field in line else missing)
        return text

    def _text_in(self, path: Any, manifest: int) -> str:
        """Return the text in a file, as one line.

        :param path: relative to the folder of the manifest, or if there is no such file, to the current directory
        """
        if not isinstance(path, str) or not path:
            raise FileDataError("'text_filepath' is %s, but must be a path" % shown(path))
        beside = joined(folder_of(self._paths[manifest]), path)
        content = path_or_content(beside if exists(beside) else path, wanted=self._use_cache_manager)
        try:
            text = content.decode("utf8") if isinstance(content, bytes) else read_text(content)
        except UnicodeDecodeError as exc:
            raise FileDataError("file %r is not a UTF-8 text file: %s" % (beside, exc)) from exc
        return text.replace("\n", "")

    def file_of(self, entry: int) -> str:
        """Return the path of the audio file, or its place in a shard."""
        if self._shards is not None and self._members is not None:
            return "%s:%s" % (self._shards.paths[int(self._members[entry, 0])], self._get(entry)[_PATH])
        return joined(self._folders[self._lines.file_of(int(self._numbers[entry]))], self._get(entry)[_PATH])

    def samples(self, entry: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate of an utterance."""
        line, path = self._get(entry), self.file_of(entry)
        if self._shards is not None and self._members is not None:
            content: Union[str, bytes] = self._shards.read(*self._members[entry].tolist())
        else:
            content = path_or_content(path, wanted=self._use_cache_manager)
        start, seconds = number_of_seconds(line.get("offset"), "offset"), float(self._seconds[entry])
        return read_part(content, start, None if seconds == _UNKNOWN else seconds, features.opts.decoder, name=path)

    def lengths(self) -> NDArray[np.int64]:
        """Return the durations in units of 10 ms."""
        unknown = np.flatnonzero(self._seconds == _UNKNOWN)
        if len(unknown):
            raise FileDataError("%s: there is no 'duration', by which to order" % self.place(int(unknown[0])))
        return hundredths(self._seconds)

    def close(self) -> None:
        """Do nothing: an open manifest is part of the index."""


def _plain(
    table: JsonTable, tag_field: Optional[str]
) -> Optional[tuple[list[str], list[float], list[str], Optional[list[float]]]]:
    """Return tags, durations, audio files and numbers of shards; None: they are not simply columns of the table."""
    columns = table.columns
    paths, tags, seconds, shards = (columns.get(name) for name in (_PATH, tag_field or _PATH, "duration", _SHARD))
    if not paths or not tags or not seconds or "" in paths or "" in tags or _SKIPPED in columns:
        return None
    if "offset" in columns and tag_field is None:
        return None
    times = np.asarray([seconds, columns.get("offset", seconds)])
    if not ((times >= 0) & (times < LONGEST)).all() or not all(map(_is_number, shards or ())):
        return None
    return tags, seconds, paths, shards


def _is_number(value: Any) -> bool:
    """Return whether a value can be the number of a shard."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < LONGEST and value % 1 == 0


def _shard_id(line: Mapping[str, Any]) -> int:
    """Return the number of the shard with the audio, or ANY."""
    value = line.get(_SHARD)
    if value is None:
        return ANY
    if not _is_number(value):
        raise FileDataError("%r is %s, but must be the number of a shard" % (_SHARD, shown(value)))
    return int(value)


def _tag(entry: Mapping[str, Any], field: Optional[str]) -> str:
    path = entry.get(_PATH)
    if not isinstance(path, str) or not path:
        raise FileDataError(
            "'audio_filepath' is %s, but must be a path" % shown(path)
            if _PATH in entry
            else "there is no 'audio_filepath', only %s" % (", ".join(sorted(map(repr, entry))) or "{}")
        )
    if field is None:
        offset = number_of_seconds(entry.get("offset"), "offset")
        return path if offset is None else "%s@%s" % (path, offset)
    tag = entry.get(field)
    if isinstance(tag, bool) or not isinstance(tag, (str, int)) or tag == "":
        raise FileDataError("tag_field %r is %s, but must be a string or an integer" % (field, shown(tag)))
    return str(tag)
