"""KaldiDataset: data directories of Kaldi, with audio or with features and alignments in archives."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.audio_range import channel_of, duration, part_of, read_range
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.files import exists, is_url, path_or_content
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.corpus import CorpusWithArrays, check_tags, hundredths
from returnn_tf.datasets.speech.kaldi_files import (
    Archives,
    Table,
    first_value,
    is_command,
    is_in_archive,
    number,
    output_of,
)
from returnn_tf.util.packed_strings import PackedStrings

_OPEN = float("inf")
_FRAME = 0.01  # seconds
_MOST_CHANNELS = 32767


@register_dataset()
class KaldiDataset(CorpusWithArrays):
    """Data directories of Kaldi: ``wav.scp``, ``segments``, ``text``; ``feats.scp`` and the like with their archives.

    With ``audio``, the utterances are those of ``segments``, or if there is none, of ``wav.scp``, whose entries are
    audio files or places in archives. ``arrays`` are further data keys, or ``data`` in place of audio: matrices
    [time, dim] or vectors [time], e.g. alignments; they need the package kaldiio. Without audio, the utterances are
    those of the first of these, or of ``text``. Each other file must have all of the utterances; ``text`` if there are
    ``targets``.

    Entries of ``wav.scp`` that are commands, ``sph2pipe a.sph |``, are an error: nothing in data files is executed.
    With ``run_pipes`` they are run by bash, for each utterance.

    Data keys: ``data`` are features, ``classes`` labels, ``orth`` the bytes of the text, ``raw`` is the text, and those
    of ``arrays``; the text only if a directory has the file ``text``. For ``sorted`` etc. the length of a sequence is
    that in ``utt2dur``, ``segments``, ``utt2num_frames`` or the audio file, the first of these that is there.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "KaldiDataset", "path": "data/train", "audio": None, "arrays": {"data": "feats.scp"},
    ...          "targets": {"vocab_file": "words.txt", "unknown_label": "<unk>"}, "seq_ordering": "laplace:.1000"}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(CorpusWithArrays.Options):
        path: Union[str, list[Any]] = option(help="data directory, or a list of several")
        arrays: Optional[dict[str, Any]] = option(
            None, help="{data key: name of a scp file in the directory}, e.g. {'data': 'feats.scp'}"
        )
        root: Optional[str] = option(
            None,
            help="directory of relative paths in scp files; default: the current one, as in Kaldi's recipes",
            needs=("audio", "arrays"),
        )
        run_pipes: bool = option(
            False, help="run commands in wav.scp, whose output is audio, as your user", needs="audio"
        )

    def setup(self) -> None:
        """Check all options, and read the first entry of each array; the rest is read when the first epoch begins."""
        self._archives = Archives(self.opts.root, use_cache_manager=self.opts.use_cache_manager)
        super().setup()

    def _checked_paths(self) -> list[str]:
        paths = super()._checked_paths()
        for path in paths:
            if not is_url(path) and not os.path.isdir(path):
                text = "%s: option 'path': %r is no directory (current directory: %s)"
                raise FileDataError(text % (self._owner(), path, os.getcwd()))
        return paths

    def first_array(self, name: str) -> NDArray[Any]:
        """Return what the first line of a scp file refers to."""
        path = os.path.join(self.paths[0], name)
        value = first_value(path, use_cache_manager=self.opts.use_cache_manager)
        try:
            return self._archives.array(value)
        except FileDataError as exc:
            raise FileDataError("file %r, line 1: %s" % (path, exc)) from exc

    def has_text(self) -> bool:
        """Return whether there are transcriptions, be it in one directory only, or have to be."""
        return self.opts.targets is not None or any(exists(os.path.join(path, "text")) for path in self.paths)

    def open_corpus(self) -> KaldiUtterances:
        """Read the tables."""
        folders = [
            _Folder(
                path,
                self._archives,
                with_audio=self.features is not None,
                with_text=self.targets is not None,
                arrays=list(self.arrays.values()),
                run_pipes=self.opts.run_pipes,
                use_cache_manager=self.opts.use_cache_manager,
            )
            for path in self.paths
        ]
        return KaldiUtterances(folders)


class KaldiUtterances:
    """The utterances of several data directories, one after the other."""

    def __init__(self, folders: Sequence[_Folder]):
        self._folders = folders
        self._starts = np.cumsum([0, *map(len, folders)])
        if len(folders) == 1:
            self.tags = folders[0].names
        else:
            paths = [folder.main.local_path for folder in folders]
            index = shared_index("kaldi-names", paths, None, self._joined_names)
            self.tags = PackedStrings.of_arrays(index.part("names"))

    def _joined_names(self) -> SharedIndex:
        names = PackedStrings()
        for folder in self._folders:
            for name in folder.names:
                names.append(name)
        check_tags(names, self.place)
        return SharedIndex(named("names", names.arrays()))

    def _find(self, entry: int) -> tuple[_Folder, int]:
        number = int(np.searchsorted(self._starts, entry, side="right")) - 1
        return self._folders[number], entry - int(self._starts[number])

    def place(self, entry: int) -> str:
        """Return file and line of an utterance."""
        folder, row = self._find(entry)
        return folder.main.place(row)

    def text(self, entry: int) -> str:
        """Return the transcription."""
        folder, row = self._find(entry)
        return folder.text(row)

    def file_of(self, entry: int) -> str:
        """Return the file with the audio."""
        folder, row = self._find(entry)
        return folder.file_of(row)

    def samples(self, entry: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate."""
        folder, row = self._find(entry)
        return folder.samples(row, features)

    def array(self, name: str, entry: int) -> NDArray[Any]:
        """Return a matrix or vector to which a scp file refers."""
        folder, row = self._find(entry)
        return folder.array(name, row)

    def lengths(self) -> NDArray[np.int64]:
        """Return the durations in units of 10 ms."""
        return hundredths(np.concatenate([folder.seconds() for folder in self._folders]))

    def close(self) -> None:
        """Do nothing: archives are open only while they are read."""


class _Folder:
    """The tables of a data directory.

    :param archives: read what the tables refer to
    :param with_audio: read ``wav.scp``, and ``segments`` if it is there
    :param with_text: each utterance must have a transcription
    :param arrays: names of scp files
    :param run_pipes: run commands in ``wav.scp``
    """

    def __init__(
        self,
        path: str,
        archives: Archives,
        *,
        with_audio: bool,
        with_text: bool,
        arrays: Sequence[str],
        run_pipes: bool,
        use_cache_manager: bool,
    ):
        self._path = path
        self._archives = archives
        self._use_cache_manager = use_cache_manager
        self._wav = self._table("wav.scp") if with_audio else None
        segments = self._table_if_any("segments") if with_audio else None
        tables = {name: self._table(name) for name in arrays}
        self._text = self._table("text") if with_text else self._table_if_any("text")
        mains = [table for table in (segments, self._wav, *tables.values(), self._text) if table is not None]
        if not mains:
            raise FileDataError("directory %r has no 'text', and neither 'audio' nor 'arrays' are wanted" % path)
        #: the table with a line for each utterance
        self.main: Table = mains[0]
        files = [None if table is None else table.local_path for table in (segments, self._wav, self._text)]
        options = [files, {name: table.local_path for name, table in tables.items()}, with_text, run_pipes]

        def read() -> SharedIndex:
            found = self._read(segments, tables, with_text=with_text, run_pipes=run_pipes)
            for table in mains:
                table.forget_names()
            return found

        index = shared_index("kaldi", sorted({table.local_path for table in mains}), options, read)
        self.names = PackedStrings.of_arrays(index.part("names"))
        self._segments = None if segments is None else _Segments(index.part("segments"))
        self._text_rows = index.arrays.get("text_rows")
        self._arrays = {name: (table, index.arrays["rows.%s" % name]) for name, table in tables.items()}

    def _read(
        self, segments: Optional[Table], tables: Mapping[str, Table], *, with_text: bool, run_pipes: bool
    ) -> SharedIndex:
        """Read the names, and find the rows of each in the other tables."""
        arrays = named("names", self.main.names.arrays())
        if segments is not None and self._wav is not None:
            arrays.update(named("segments", read_segments(segments, self._wav)))
        if self._text is not None:
            arrays["text_rows"] = self._rows_of(self._text, all_there=with_text)
        for name, table in tables.items():
            arrays["rows.%s" % name] = self._rows_of(table)
        if self._wav is not None:
            self._wav.names  # noqa: B018  # an error if one occurs twice
            if not run_pipes:
                _refuse_commands(self._wav)
        return SharedIndex(arrays)

    def _table(self, name: str) -> Table:
        return Table(os.path.join(self._path, name), use_cache_manager=self._use_cache_manager)

    def _table_if_any(self, name: str) -> Optional[Table]:
        return self._table(name) if exists(os.path.join(self._path, name)) else None

    def _rows_of(self, table: Table, *, all_there: bool = True) -> NDArray[np.int64]:
        """Return the row of each utterance in another table, -1 for one that may be missing and is."""
        return table.rows(self.main.names, self.main.path, all_there=all_there)

    def __len__(self) -> int:
        return len(self.names)

    def text(self, row: int) -> str:
        """Return the transcription."""
        if self._text is None or self._text_rows is None:
            raise FileDataError("directory %r has no file 'text'" % self._path)
        if self._text_rows[row] < 0:
            raise FileDataError("file %r has no line for it" % self._text.path)
        return self._text.value(int(self._text_rows[row]))

    def array(self, name: str, row: int) -> NDArray[Any]:
        """Return a matrix or vector to which a scp file refers."""
        table, rows = self._arrays[name]
        try:
            return self._archives.array(table.value(int(rows[row])))
        except FileDataError as exc:
            if table is self.main:  # whose line every error of an utterance names
                raise
            raise FileDataError("%s: %s" % (table.place(int(rows[row])), exc)) from exc

    def _recording(self, row: int) -> str:
        """Return the value in ``wav.scp`` for an utterance."""
        assert self._wav is not None
        value = self._wav.value(row if self._segments is None else int(self._segments.recordings[row]))
        if not value:
            raise FileDataError("the audio file is missing behind the name in %r" % self._wav.path)
        return value

    def file_of(self, row: int) -> str:
        """Return the file or command with the audio."""
        if self._wav is None:
            return ""
        value = self._recording(row)
        return value if is_command(value) else self._archives.resolve(value)

    def samples(self, row: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate."""
        value, name = self._recording(row), self.file_of(row)
        segment = None if self._segments is None else self._segments.bounds(row)
        if is_in_archive(value):
            samples, rate = self._archives.audio(value)
            samples = samples if segment is None else part_of(samples, rate, *segment, name)
        else:
            content = output_of(value) if is_command(value) else path_or_content(name, wanted=self._use_cache_manager)
            read = features.read(content, name=name) if segment is None else read_range(content, *segment, name=name)
            samples, rate = read
        if self._segments is not None and self._segments.channels[row] >= 0:
            samples = channel_of(samples, int(self._segments.channels[row]), name)
        return samples, rate

    def seconds(self) -> NDArray[np.float64]:
        """Return the durations; DataError if nothing tells them."""
        table = self._table_if_any("utt2dur")
        if table is not None:
            return self._numbers_in(table)
        if self._segments is not None:
            return self._of_segments(self._segments)
        table = self._table_if_any("utt2num_frames")
        if table is not None:
            return self._numbers_in(table) * _FRAME
        if self._wav is None:
            raise FileDataError(
                "directory %r has neither 'utt2dur' nor 'utt2num_frames', by which to order; "
                "Kaldi's utils/data/get_utt2num_frames.sh writes them" % self._path
            )
        return np.array([self._of_file(row) for row in range(len(self))])

    def _numbers_in(self, table: Table) -> NDArray[np.float64]:
        """Return the number of each utterance in a table of numbers."""

        def read() -> SharedIndex:
            found = table.numbers()[table.rows(self.names, self.main.path)]
            table.forget_names()
            return SharedIndex({"numbers": found})

        paths = [table.local_path, self.main.local_path]
        return shared_index("kaldi-numbers", paths, paths, read).arrays["numbers"]

    def _of_segments(self, segments: _Segments) -> NDArray[np.float64]:
        ends = np.array(segments.ends)
        for row in np.flatnonzero(np.isinf(ends)).tolist():
            ends[row] = self._of_file(row)
        seconds: NDArray[np.float64] = ends - segments.starts
        return seconds

    def _of_file(self, row: int) -> float:
        """Return the duration in the header of a recording."""
        value = self._recording(row)
        if is_command(value) or is_in_archive(value) or is_url(value):
            text = "%s: the duration of %r is not known; Kaldi's utils/data/get_utt2dur.sh writes 'utt2dur'"
            raise FileDataError(text % (self.main.place(row), value))
        path = self._archives.resolve(value)
        return duration(path, name=path)


class _Segments:
    """The file ``segments``: parts of recordings.

    :param index: of `read_segments`
    """

    def __init__(self, index: Mapping[str, NDArray[Any]]):
        self.starts, self.ends, self.channels = (index[name] for name in ("starts", "ends", "channels"))
        #: the row of each in ``wav.scp``
        self.recordings = index["recordings"]

    def bounds(self, row: int) -> tuple[float, Optional[float]]:
        """Return start and end in seconds; None: the end of the recording."""
        start, end = float(self.starts[row]), float(self.ends[row])
        return start, None if end == _OPEN else end


def read_segments(table: Table, wav: Table) -> dict[str, NDArray[Any]]:
    """Return start, end, channel (-1: all) and row of the recording of each line ``utterance recording start end``.

    An end of -1 is that of the recording; a channel may follow.

    :param wav: the recordings
    """
    names, parts = PackedStrings(), array("d")
    for row, value in enumerate(table.values()):
        try:
            recording, *part = _segment(value)
        except FileDataError as exc:
            raise FileDataError("%s: %s" % (table.place(row), exc)) from None
        names.append(recording)
        parts.extend(part)
    starts, ends, channels = np.asarray(parts).reshape(-1, 3).T
    found = {"starts": starts, "ends": ends, "channels": channels.astype(np.int16)}
    return {**found, "recordings": wav.rows(names, table.path)}


def _segment(value: str) -> tuple[str, float, float, float]:
    """Return recording, start, end and channel of a segment."""
    recording, *fields = value.split() or [""]
    if not 2 <= len(fields) <= 3:
        raise FileDataError("%r must be a recording, its start, its end, and perhaps a channel" % value)
    start, end = number(fields[0]), number(fields[1], least=-1.0)
    if end == -1.0:
        end = _OPEN
    if end <= start:
        raise FileDataError("it ends at %s, before it starts at %s" % (fields[1], fields[0]))
    return recording, start, end, min(number(fields[2]), _MOST_CHANNELS) if fields[2:] else -1.0


def _refuse_commands(wav: Table) -> None:
    for row, value in enumerate(wav.values()):
        if is_command(value):
            raise FileDataError(
                "%s: %r is a command, and what stands in data files is not executed. Set run_pipes=True if you trust "
                "it, or write the audio to files" % (wav.place(row), value)
            )
