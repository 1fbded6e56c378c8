"""NeMoDataset: the manifests of NVIDIA NeMo, one JSON object per line for each utterance."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.files import path_or_content
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.audio_range import read_part
from returnn_tf.datasets.speech.corpus import CorpusDataset, check_tags, hundredths
from returnn_tf.datasets.speech.manifests import LONGEST, folder_of, joined, number_of_seconds
from returnn_tf.datasets.text.json_lines import JsonLines, JsonTable
from returnn_tf.util.packed_strings import PackedStrings

_PATH = "audio_filepath"
_UNKNOWN = -1.0


@register_dataset()
class NeMoDataset(CorpusDataset):
    """Manifests of NVIDIA NeMo: files of lines such as ``{"audio_filepath": "a.wav", "duration": 1.5, "text": "..."}``.

    ``audio_filepath`` is relative to the folder of its manifest. The utterance is the part of the file from ``offset``
    on (default: 0) that is ``duration`` long (default: the rest), both in seconds; at most 0.1 s are taken for rounding
    at the end of the file. The tag is ``audio_filepath``, with an offset ``audio_filepath@offset``, or the value of
    ``tag_field``.

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
        path: Union[str, list[Any]] = option(help="manifest, .gz allowed, or a list of several")
        audio_dir: Optional[str] = option(
            None,
            help="directory of audio files with a relative path; default: that of the manifest",
            needs="audio",
        )
        tag_field: Optional[str] = option(None, help="field of the lines with the tag, e.g. 'id'")
        text_field: Optional[str] = option(
            "text", help="field of the lines with the transcription; None: there are no texts"
        )

    def has_text(self) -> bool:
        """Return whether the lines have a text."""
        return self.opts.text_field is not None

    def open_corpus(self) -> NeMoUtterances:
        """Index the lines."""
        opts = self.opts
        return NeMoUtterances(
            self.paths,
            folder=opts.audio_dir,
            tag_field=opts.tag_field,
            text_field=opts.text_field,
            use_cache_manager=opts.use_cache_manager,
        )


class NeMoUtterances:
    """The lines of manifests.

    :param folder: of audio files with a relative path; None: that of the manifest
    :param tag_field: with the tag; None: made of the path and the offset
    :param text_field: with the transcription; None: there is none
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        folder: Optional[str],
        tag_field: Optional[str],
        text_field: Optional[str],
        use_cache_manager: bool,
    ):
        self._folders = [folder_of(path) if folder is None else folder for path in paths]
        self._tag_field = tag_field
        self._text_field = text_field
        self._use_cache_manager = use_cache_manager
        self._lines = JsonLines(paths, use_cache_manager=use_cache_manager)
        index = shared_index("nemo", self._lines.local_paths, [tag_field], self._read)
        self.tags = PackedStrings.of_arrays(index.part("tags"))
        self._numbers, self._seconds = index.arrays["numbers"], index.arrays["seconds"]

    def _read(self) -> SharedIndex:
        """Read tag, line and duration of each utterance."""
        tags, numbers, seconds = PackedStrings(), array("q"), array("d")
        kinds = {_PATH: str, "offset": float, "duration": float}
        if self._tag_field is not None:
            kinds[self._tag_field] = str
        for number, found in self._lines.tables(kinds):
            columns = _plain(found, self._tag_field) if isinstance(found, JsonTable) else None
            if columns is not None:
                tags.extend_texts(columns[0])
                seconds.extend(columns[1])
                numbers.extend(range(number, number + len(columns[0])))
                continue
            for row, line in enumerate(found.rows() if isinstance(found, JsonTable) else [found]):
                try:
                    tags.append(_tag(line, self._tag_field))
                    duration = number_of_seconds(line.get("duration"), "duration")
                except FileDataError as exc:
                    raise FileDataError("%s: %s" % (self._lines.place(number + row), exc)) from None
                seconds.append(_UNKNOWN if duration is None else duration)
                numbers.append(number + row)
        check_tags(tags, lambda entry: self._lines.place(numbers[entry]))
        arrays = {"numbers": np.asarray(numbers), "seconds": np.asarray(seconds)}
        return SharedIndex({**named("tags", tags.arrays()), **arrays})

    def place(self, entry: int) -> str:
        """Return manifest and line of an utterance."""
        return self._lines.place(int(self._numbers[entry]))

    def _get(self, entry: int) -> Mapping[str, Any]:
        return self._lines.get(int(self._numbers[entry]))

    def text(self, entry: int) -> str:
        """Return the transcription."""
        line = self._get(entry)
        assert self._text_field is not None
        text = line.get(self._text_field)
        if not isinstance(text, str):
            missing = "there is no %r, only %s; set text_field=None if there are no texts" % (
                self._text_field,
                ", ".join(sorted(map(repr, line))),
            )
            wrong = "%r is %s, but must be a string" % (self._text_field, shown(text))
            raise FileDataError(wrong if self._text_field in line else missing)
        return text

    def file_of(self, entry: int) -> str:
        """Return the path of the audio file."""
        return joined(self._folders[self._lines.file_of(int(self._numbers[entry]))], self._get(entry)[_PATH])

    def samples(self, entry: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate of an utterance."""
        line, path = self._get(entry), self.file_of(entry)
        content = path_or_content(path, wanted=self._use_cache_manager)
        start, seconds = number_of_seconds(line.get("offset"), "offset"), float(self._seconds[entry])
        return read_part(content, start, None if seconds == _UNKNOWN else seconds, features, name=path)

    def lengths(self) -> NDArray[np.int64]:
        """Return the durations in units of 10 ms."""
        unknown = np.flatnonzero(self._seconds == _UNKNOWN)
        if len(unknown):
            raise FileDataError("%s: there is no 'duration', by which to order" % self.place(int(unknown[0])))
        return hundredths(self._seconds)

    def close(self) -> None:
        """Do nothing: an open manifest is part of the index."""


def _plain(table: JsonTable, tag_field: Optional[str]) -> Optional[tuple[list[str], list[float]]]:
    """Return tags and durations of utterances; None: they have offsets in their tags, or are not all right."""
    columns = table.columns
    paths, tags, seconds = (columns.get(name) for name in (_PATH, tag_field or _PATH, "duration"))
    if not paths or not tags or not seconds or "" in paths or "" in tags:
        return None
    if "offset" in columns and tag_field is None:
        return None
    times = np.asarray([seconds, columns.get("offset", seconds)])
    return (tags, seconds) if ((times >= 0) & (times < LONGEST)).all() else None


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
