"""OggZipDataset: zip files of audio with transcriptions."""

from __future__ import annotations

import functools
import gzip
import os
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import open_regular, path_of
from returnn_tf.datasets.core.tags import warn_of_unknown
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.literal_list import Columns, read_columns
from returnn_tf.datasets.speech.utterances import (
    ChosenUtteranceOptions,
    UtterancesInFiles,
    random_subset,
)
from returnn_tf.datasets.speech.zip_archive import ZipArchive
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.logging.log import log
from returnn_tf.util.packed_strings import PackedStrings

_KEYS = ("text", "duration", "file", "seq_name")
_UNKNOWN = -1
_PIECE = 1 << 20
#: Larger numbers are no durations, and would not be integers once in units of 10 ms.
_LONGEST = 1e12


class OggZipPart:
    """One zip file, text file or directory of a corpus.

    :param name: its internal name: of its text and of the folder with the audio
    :param archive: the zip file, if any
    :param text: path of the text outside of the zip file; None: it is inside
    :param folder: of audio files outside of a zip file
    """

    def __init__(
        self, name: str, *, archive: Optional[str] = None, text: Optional[str] = None, folder: Optional[str] = None
    ):
        self.name = name
        self.archive_path = archive
        self.text = text
        self.folder = folder

    @functools.cached_property
    def archive(self) -> Optional[ZipArchive]:
        """Return the zip file, whose directory is read at the first request."""
        return None if self.archive_path is None else ZipArchive(self.archive_path)

    @property
    def paths(self) -> list[str]:
        """Return the files that have entries and their audio."""
        return [path for path in (self.archive_path, self.text) if path is not None]

    def entries(self) -> Iterator[Union[dict[str, Any], Columns]]:
        """Yield the entries of the text, some of them as columns; the first one alone."""
        if self.text is not None:
            yield from read_columns(_file_pieces(self.text), keys=_KEYS, where="text %r" % self.text)
            return
        assert self.archive is not None
        member = self.name + ".txt"
        if member not in self.archive.rows:
            texts = [name for name in self.archive.rows if name.endswith(".txt") and "/" not in name]
            raise FileDataError(
                "zip file %r has no text %r%s"
                % (
                    self.archive.path,
                    member,
                    ", but %r; was the file renamed? Set content_name=%r" % (texts[0], texts[0][: -len(".txt")])
                    if len(texts) == 1
                    else ". An OggZip corpus has one: a list of dicts with text, duration and file",
                )
            )
        where = "text %r in zip file %r" % (member, self.archive.path)
        yield from read_columns(self.archive.pieces(member), keys=_KEYS, where=where)


class _Entries:
    """Reads the entries of all parts that pass the filter, in their order.

    :param parts: of the corpus
    :param with_audio: every entry needs an audio file
    :param prefix: the audio is in a folder of the name of its zip file
    :param allowed: tags of the entries to keep; None: all
    """

    def __init__(
        self, parts: Sequence[OggZipPart], *, with_audio: bool, prefix: bool, allowed: Optional[Collection[str]]
    ):
        self._parts = parts
        self._prefix = prefix
        self._with_audio = with_audio
        self._texts, self._tags, self._files = PackedStrings(), PackedStrings(), PackedStrings()
        self._part_of, self._lengths, self._rows = array("i"), array("q"), array("q")
        self._faults: dict[int, str] = {}
        self._num_read = self._num_wrong_durations = 0
        self._wrong_duration = ""
        for number, part in enumerate(parts):
            self._add_part(number, part, allowed)
            if part.archive is not None:
                part.archive.forget_names()

    def index(self) -> SharedIndex:
        """Return all that `OggZipIndex` needs."""
        repeated = self._tags.repeated()
        arrays: dict[str, NDArray[Any]] = {
            **named("texts", self._texts.arrays()),
            **named("tags", self._tags.arrays()),
            **named("files", self._files.arrays()),
            "part_of": np.asarray(self._part_of),
            "lengths": np.asarray(self._lengths),
            "rows": np.asarray(self._rows),
        }
        for number, part in enumerate(self._parts):
            if part.archive is not None:
                arrays["members.%d" % number] = part.archive.members
        facts = {
            "num_read": self._num_read,
            "num_wrong_durations": self._num_wrong_durations,
            "wrong_duration": self._wrong_duration,
            "faults": {str(entry): fault for entry, fault in self._faults.items()},
            "num_repeated": len(repeated),
            "repeated": self._tags[repeated[0]] if repeated else "",
        }
        return SharedIndex(arrays, facts)

    def _add_part(self, number: int, part: OggZipPart, allowed: Optional[Collection[str]]) -> None:
        count = 0
        for entry in part.entries():
            if not count:
                self._check_first(part, entry)
            several = [value for value in entry.values() if isinstance(value, list)]
            if several:
                count += len(several[0])
                self._add_columns(number, part, entry, allowed)
                continue
            count += 1
            tag = _string(entry.get("seq_name")) or _string(entry.get("file"))
            if allowed is None or tag in allowed:
                self._add(number, part, tag, entry)
        if not count:
            raise FileDataError("the text of %s has no entries" % _place(part))
        self._num_read += count

    def _check_first(self, part: OggZipPart, entry: Mapping[str, Any]) -> None:
        fault = None
        if not isinstance(entry.get("text"), str):
            fault = "'text' is %s, but must be a string" % shown(entry.get("text"))
        elif not isinstance(entry.get("duration"), float):
            fault = "'duration' is %s, but must be a float: seconds, written with a point" % shown(
                entry.get("duration")
            )
        elif not isinstance(entry.get("file"), str) and (
            self._with_audio or not isinstance(entry.get("seq_name"), str)
        ):
            fault = "'file' is %s, but must be a string%s" % (
                shown(entry.get("file")),
                "; set audio=None to read the text alone" if self._with_audio else ", or there must be a 'seq_name'",
            )
        if fault:
            raise FileDataError("the text of %s: first entry: %s" % (_place(part), fault))

    def _add(self, number: int, part: OggZipPart, tag: str, entry: Mapping[str, Any]) -> None:
        text, file = entry.get("text"), entry.get("file")
        if not isinstance(text, str):
            self._faults[len(self._tags)] = "its 'text' is %s, not a string" % shown(text)
        self._tags.append(tag)
        self._texts.append(_string(text))
        self._files.append(_string(file))
        self._part_of.append(number)
        self._lengths.append(_length(entry.get("duration")))
        if self._lengths[-1] == _UNKNOWN and "duration" in entry:
            self._num_wrong_durations += 1
            self._wrong_duration = self._wrong_duration or "%r: %s" % (tag, shown(entry["duration"]))
        row = _UNKNOWN
        if part.archive is not None and self._with_audio and isinstance(file, str):
            row = part.archive.rows.get(_member(part, file, self._prefix), _UNKNOWN)
        self._rows.append(row)

    def _add_columns(self, number: int, part: OggZipPart, columns: Columns, allowed: Optional[Collection[str]]) -> None:
        """Add several entries, each of which has the keys of the columns with values of their types."""
        texts, files, durations = (columns.get(key) for key in ("text", "file", "duration"))
        count = len(next(iter(columns.values())))
        names = columns.get("seq_name") or files or [""] * count
        tags = [name or file for name, file in zip(names, files)] if files and "" in names else names
        if allowed is not None or texts is None or durations is None or not self._are_plain(durations):
            for place, tag in enumerate(tags):
                if allowed is None or tag in allowed:
                    self._add(number, part, tag, {key: column[place] for key, column in columns.items()})
            return
        self._tags.extend_texts(tags)
        self._texts.extend_texts(texts)
        self._files.extend_texts(files or [""] * count)
        self._part_of.extend([number] * count)
        self._lengths.frombytes((np.asarray(durations) * 100).astype(np.int64).tobytes())
        if part.archive is not None and self._with_audio and files is not None:
            rows, member = part.archive.rows, _member(part, "", self._prefix)
            self._rows.extend([rows.get(member + file, _UNKNOWN) for file in files])
        else:
            self._rows.extend([_UNKNOWN] * count)

    @staticmethod
    def _are_plain(durations: list[float]) -> bool:
        """Return whether all of these are durations."""
        return min(durations) >= 0 and max(durations) < _LONGEST


def _member(part: OggZipPart, file: str, prefix: bool) -> str:
    return "%s/%s" % (part.name, file) if prefix else file


class OggZipIndex:
    """The entries of a corpus.

    :param parts: of the corpus
    :param index: of `_Entries`
    :param prefix: the audio is in a folder of the name of its zip file
    """

    def __init__(self, parts: Sequence[OggZipPart], index: SharedIndex, *, prefix: bool):
        self.parts = parts
        self.facts = index.facts
        self._prefix = prefix
        self._texts, self._tags, self._files = (
            PackedStrings.of_arrays(index.part(name)) for name in ("texts", "tags", "files")
        )
        self._part_of, self._lengths, self._rows = (index.arrays[name] for name in ("part_of", "lengths", "rows"))
        self._order: Optional[NDArray[Any]] = None
        for number, part in enumerate(parts):
            members = index.arrays.get("members.%d" % number)
            if members is not None and part.archive_path is not None:
                part.archive = ZipArchive(part.archive_path, members)

    @property
    def tags(self) -> PackedStrings:
        """Return the tags of all entries in the order of the text."""
        return self._tags

    def keep(self, order: NDArray[Any]) -> None:
        """Keep these entries in this order."""
        self._order = order

    def _entry(self, index: int) -> int:
        return index if self._order is None else int(self._order[index])

    def __len__(self) -> int:
        return len(self._tags) if self._order is None else len(self._order)

    def tag(self, index: int) -> str:
        """Return the tag of an entry."""
        return self._tags[self._entry(index)]

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several entries."""
        return self._tags.chosen(indices if self._order is None else self._order[indices].tolist())

    def digest_of_tags(self) -> Optional[bytes]:
        """Return a digest of the tags; None if some are chosen."""
        return self._tags.digest() if self._order is None else None

    def text(self, index: int) -> str:
        """Return the text of an entry."""
        entry = self._entry(index)
        fault = self.facts["faults"].get(str(entry))
        if fault is not None:
            raise FileDataError(fault)
        return self._texts[entry]

    def lengths(self) -> NDArray[Any]:
        """Return the lengths [n] in units of 10 ms.

        :raises DataError: an entry has none
        """
        lengths = self._lengths
        lengths = lengths if self._order is None else lengths[self._order]
        unknown = np.flatnonzero(lengths == _UNKNOWN)
        if len(unknown):
            raise FileDataError(
                "sequence %r has no duration, or one that is no number of seconds" % self.tag(unknown[0])
            )
        return lengths

    def file_of(self, index: int) -> str:
        """Return the zip file or path of the audio of an entry, for messages."""
        part, file = self._audio_file(index)
        if part.archive is not None:
            return "%s:%s" % (part.archive.path, _member(part, file, self._prefix))
        return os.path.join(part.folder or "", file)

    def _audio_file(self, index: int) -> tuple[OggZipPart, str]:
        entry = self._entry(index)
        return self.parts[self._part_of[entry]], self._files[entry]

    def audio(self, index: int) -> Union[bytes, str]:
        """Return the content of the audio file of an entry, or its path."""
        part, file = self._audio_file(index)
        if not file:
            raise FileDataError("it has no 'file' with audio; set audio=None to read the text alone")
        if part.folder is not None:
            path = os.path.normpath(file)
            if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
                raise FileDataError("its 'file' %r is not in the directory %r of the corpus" % (file, part.folder))
            return os.path.join(part.folder, file)
        if part.archive is None:
            raise FileDataError(
                "text %r has no zip file %r beside it in the option 'path'" % (part.text, part.name + ".zip")
            )
        row, name = int(self._rows[self._entry(index)]), _member(part, file, self._prefix)
        if row == _UNKNOWN:
            raise FileDataError("zip file %r has no audio file %r" % (part.archive.path, name))
        return part.archive.read(row, name)

    def close(self) -> None:
        """Close the zip files; they are reopened on demand."""
        for part in self.parts:
            if part.archive is not None:
                part.archive.close()


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _length(duration: Any) -> int:
    """Return a duration in units of 10 ms."""
    if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not 0 <= duration < _LONGEST:
        return _UNKNOWN
    return int(duration * 100)


def _place(part: OggZipPart) -> str:
    if part.text is not None:
        return repr(part.text)
    assert part.archive is not None
    return "zip file %r" % part.archive.path


def _file_pieces(path: str) -> Iterator[bytes]:
    """Yield the content of a text file, decompressed if its name ends in .gz."""
    try:
        with open_regular(path) as raw, gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw as file:
            while piece := file.read(_PIECE):
                yield piece
    except FileNotFoundError:
        raise FileDataError("text %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except (OSError, EOFError, zlib.error) as exc:
        raise FileDataError("text %r cannot be read: %s" % (path, getattr(exc, "strerror", None) or exc)) from exc


_TEXT = ".txt.gz"


@register_dataset()
class OggZipDataset(UtterancesInFiles[OggZipIndex]):
    """Audio with transcriptions in zip files.

    ``NAME.zip`` has the text ``NAME.txt``, a Python list with a dict for every sequence: ``text``, ``duration`` in
    seconds, ``file``, the audio ``NAME/<file>`` in the zip file, and if wanted ``seq_name``, the tag; else that is
    the file. The text is indexed when the first epoch begins, audio is decoded sequence by sequence.

    Data keys: ``data`` are features, ``classes`` labels, ``orth`` the bytes of the text, ``raw`` is the text. For
    ``sorted`` etc. the length of a sequence is its duration.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "OggZipDataset", "path": "train.zip", "seq_ordering": "laplace:.1000",
    ...          "audio": {"features": "log_mel_filterbank", "num_feature_filters": 80},
    ...          "targets": {"class": "BytePairEncoding", "bpe_file": "bpe.codes", "vocab_file": "bpe.vocab"}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    takes_last_of_tag = True

    @dataclass
    class Options(ChosenUtteranceOptions):
        path: Union[str, list[Any]] = option(
            help="NAME.zip, a list of these and of texts NAME.txt.gz beside them, or a directory beside its text"
        )
        audio: Optional[dict[str, Any]] = option(
            help="options of the features, {} for all defaults; None: without audio"
        )
        targets: Optional[Any] = option(help="options of the vocabulary, or a vocabulary; None: without labels")
        targets_post_process: Any = option(
            None, help="functions on the text before it becomes labels: names, functions or a list of these"
        )
        content_name: Union[None, str, list[Any]] = option(
            None, help="NAME inside of the zip file, if that was renamed; a list has one for every path"
        )
        resolve_symlink_for_name: bool = option(False, help="the path is a link, whose target has the right NAME")
        zip_audio_files_have_name_as_prefix: bool = option(
            True, help="the audio is NAME/<file> in the zip file; False: <file>"
        )
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None,
            help="only the shortest sequences in some epochs: {(first, last): {'max_mean_len': x}}, in 10 ms",
        )

    def setup(self) -> None:
        """Check all options; nothing of the corpus is read."""
        opts = self.opts
        self.set_up(audio=opts.audio, targets=opts.targets)
        paths = opts.path if isinstance(opts.path, (list, tuple)) else [opts.path]
        self._paths = [path_of(path, where="%s: option 'path'" % self._owner()) for path in paths]
        self._names = self._check_names()
        self._filter = EpochFilter.parse(opts.epoch_wise_filter, owner=self._owner())
        self._post_process = make_post_processing(
            opts.targets_post_process, owner="%s: targets_post_process" % self._owner()
        )
        random_subset(0, opts.fixed_random_subset, 0, self._owner())
        self.data_specs = self.specs_by_key()

    # ---- files

    def _check_names(self) -> list[str]:
        """Return the internal name of each path."""
        opts = self.opts
        if not self._paths:
            raise FileError("%s: option 'path' is empty" % self._owner())
        names = opts.content_name
        if names is None:
            return [self._name_of(path) for path in self._paths]
        names = [names] * len(self._paths) if isinstance(names, str) else names
        if len(names) != len(self._paths) or not all(isinstance(name, str) for name in names):
            raise FileError(
                "%s: option 'content_name' must be a name, or a list with one for each of the %d paths, not %r"
                % (self._owner(), len(self._paths), opts.content_name)
            )
        return list(names)

    def _name_of(self, path: str) -> str:
        if self.opts.resolve_symlink_for_name:
            path = os.path.realpath(path)
        name = os.path.basename(path)
        return name[: -len(_TEXT)] if name.endswith(_TEXT) else os.path.splitext(name)[0]

    def _parts(self) -> list[OggZipPart]:
        """Open the files of the corpus."""
        folder = self._folder()
        if folder is not None:
            return [OggZipPart(os.path.basename(folder), text=folder + ".txt", folder=folder)]
        for path in self._paths:
            if not path.endswith((".zip", _TEXT)):
                raise FileDataError(
                    "%s: %r is neither a .zip file nor a .txt.gz file%s"
                    % (
                        self._owner(),
                        path,
                        "; a directory needs the text %r beside it" % (path.rstrip("/") + ".txt")
                        if os.path.isdir(path)
                        else "",
                    )
                )
        texts = {name: path for name, path in zip(self._names, self._paths) if path.endswith(_TEXT)}
        with_zip = {name for name, path in zip(self._names, self._paths) if path.endswith(".zip")}
        texts = {name: self._local(path) for name, path in texts.items()}
        parts = []
        for name, path in zip(self._names, self._paths):
            if path.endswith(".zip"):
                parts.append(OggZipPart(name, archive=self._local(path), text=texts.get(name)))
            elif name not in with_zip:
                parts.append(OggZipPart(name, text=texts[name]))
        return parts

    def _folder(self) -> Optional[str]:
        """Return the directory if the corpus is one."""
        opts = self.opts
        path = self._paths[0].rstrip("/") or "/"
        if (
            len(self._paths) > 1
            or path.endswith(".zip")
            or not os.path.isdir(path)
            or not os.path.exists(path + ".txt")
        ):
            return None
        for name in ("content_name", "resolve_symlink_for_name", "use_cache_manager"):
            if getattr(opts, name):
                raise FileError("%s: option %r is for zip files, but %r is a directory" % (self._owner(), name, path))
        return path

    def _local(self, path: str) -> str:
        return local_copy(path, wanted=self.opts.use_cache_manager)

    def read_index(self) -> OggZipIndex:
        """Read the texts, and choose the sequences."""
        opts = self.opts
        allowed = self.tags_of_segment_file()
        parts, prefix = self._parts(), opts.zip_audio_files_have_name_as_prefix
        with_audio = self.features is not None
        paths = [path for part in parts for path in part.paths]
        if opts.segment_file:
            paths.append(opts.segment_file)
        options = [with_audio, prefix, bool(allowed), [[part.name, part.folder is None, part.paths] for part in parts]]

        def make() -> SharedIndex:
            return _Entries(parts, with_audio=with_audio, prefix=prefix, allowed=allowed).index()

        with self._wanted_by("path"):
            index = OggZipIndex(parts, shared_index("oggzip", paths, options, make), prefix=prefix)
        if not len(index):
            raise FileDataError(
                "%s: none of its %d sequences is in segment_file %r (%d tags)"
                % (self._owner(), index.facts["num_read"], opts.segment_file, len(allowed or ()))
            )
        if allowed:
            warn_of_unknown(self._owner(), "segment_file", self.opts.segment_file, allowed, index.tags)
        self._warn_of_contradictions(index)
        order = random_subset(len(index), opts.fixed_random_subset, opts.fixed_random_subset_seed, self._owner())
        if order is not None:
            index.keep(order)
        return index

    def _warn_of_contradictions(self, index: OggZipIndex) -> None:
        """Log what is wrong in the text of the corpus, but does not matter for each use of it."""
        facts = index.facts
        if facts["num_wrong_durations"]:
            log.warn(
                "%s: %d sequences have a duration that is not a number of seconds, e.g. %s; orders by length fail."
                % (self._owner(), facts["num_wrong_durations"], facts["wrong_duration"])
            )
        if facts["num_repeated"]:
            log.warn(
                "%s: %d sequences have the tag of an earlier one, e.g. %r. Lists of tags choose the last one of a tag."
                % (self._owner(), facts["num_repeated"], facts["repeated"])
            )

    # ---- sequences

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of an epoch, after ``epoch_wise_filter``."""
        order = super().seq_order(epoch)
        assert order is not None
        for entry in self._filter.at(max(epoch, 1)):
            order = limit_mean_length(order, self.needed_lengths()[order], entry.get("max_mean_len"))
        return order

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several sequences."""
        return self.index.tags_many(indices)

    def digest_of_tags(self) -> Optional[bytes]:
        """Return a digest of the tags; None if some are chosen."""
        return self.index.digest_of_tags()

    def target_text(self, index: int) -> str:
        """Return the transcription after ``targets_post_process``."""
        return self._post_process(self.text(index))
