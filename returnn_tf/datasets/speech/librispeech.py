"""LibriSpeechCorpus: the corpus as it is distributed, in zip files or directories."""

from __future__ import annotations

import functools
import glob
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError, FileError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import read_text
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.utterances import UtteranceDataset, UtterancesInFiles, random_subset
from returnn_tf.datasets.speech.zip_archive import ZipArchive
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.util.packed_strings import PackedStrings

_ROOT = "LibriSpeech/"
_SETS = ("train", "dev", "test")
_PROOF = "train-clean-100"
_LINE = re.compile(r"(\d+)-(\d+)-(\d+)(?:\s+(.*))?")
_TRANSCRIPT = re.compile(r"(\d+)/(\d+)/(\d+-\d+)\.trans\.txt")


class ZipPart:
    """A part in a zip file, with the members LibriSpeech/<part>/<speaker>/<chapter>/...

    :param path: of the zip file
    """

    def __init__(self, path: str, *, use_cache_manager: bool):
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.path = path
        self._local = local_copy(path, wanted=use_cache_manager)
        self._prefix = "%s%s/" % (_ROOT, self.name)

    @functools.cached_property
    def _archive(self) -> ZipArchive:
        """Return the zip file, whose directory is read at the first request."""
        return ZipArchive(self._local)

    def files(self) -> list[str]:
        """Return the files with the transcripts."""
        return [self._local]

    @property
    def members(self) -> Optional[NDArray[np.uint8]]:
        """Return the places of all members in the zip file, for `open_with`."""
        return self._archive.members

    def open_with(self, members: NDArray[Any]) -> None:
        """Take the places of all members, which then are not read."""
        self._archive = ZipArchive(self._local, members)

    def transcripts(self) -> Iterator[tuple[str, str]]:
        """Yield (path, content) of the transcripts."""
        first = next(iter(self._archive.rows), "")
        if not first.startswith(_ROOT):
            text = "zip file %r: its first member is %r, but in a part of LibriSpeech all are in %s"
            raise FileDataError(text % (self.path, first, _ROOT))
        for name, row in self._archive.rows.items():
            if name.startswith(self._prefix) and _TRANSCRIPT.fullmatch(name, len(self._prefix)):
                yield "%s:%s" % (self.path, name), _decoded(self._archive.read(row, name), name)

    def locate(self, name: str) -> int:
        """Return the row of an audio file, or -1."""
        return self._archive.rows.get(self._prefix + name, -1)

    def audio(self, name: str, row: int) -> bytes:
        """Return the content of an audio file."""
        if row < 0:
            raise FileDataError("zip file %r has no audio file %r" % (self.path, self._prefix + name))
        return self._archive.read(row, self._prefix + name)

    def file(self, name: str) -> str:
        """Return the place of an audio file, for messages."""
        return "%s:%s" % (self.path, self._prefix + name)

    def forget_names(self) -> None:
        """Free the memory of the names, once all audio files are located."""
        self._archive.forget_names()

    def close(self) -> None:
        """Close the zip file; it is reopened on demand."""
        if "_archive" in self.__dict__:
            self._archive.close()


class FolderPart:
    """A part in a directory, with the files <speaker>/<chapter>/...

    :param path: of the directory
    """

    def __init__(self, path: str, *, use_cache_manager: bool):
        self.name = os.path.basename(path)
        self.path = path
        self._use_cache_manager = use_cache_manager

    def files(self) -> list[str]:
        """Return the files with the transcripts."""
        found = sorted(glob.glob(os.path.join(glob.escape(self.path), "*", "*", "*.trans.txt")))
        return [path for path in found if _TRANSCRIPT.fullmatch(os.path.relpath(path, self.path).replace(os.sep, "/"))]

    @property
    def members(self) -> Optional[NDArray[np.uint8]]:
        """Return None: there is no zip file."""
        return None

    def transcripts(self) -> Iterator[tuple[str, str]]:
        """Yield (path, content) of the transcripts."""
        for path in self.files():
            yield path, read_text(path)

    def locate(self, name: str) -> int:
        """Return 0: rows are unused."""
        return 0

    def audio(self, name: str, row: int) -> str:
        """Return the path of an audio file, or of its copy."""
        return local_copy(self.file(name), wanted=self._use_cache_manager)

    def file(self, name: str) -> str:
        """Return the path of an audio file."""
        return os.path.join(self.path, name)

    def forget_names(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


Part = Union[ZipPart, FolderPart]


def find_parts(path: str, prefix: str, *, use_zip: bool, where: str) -> list[str]:
    """Return the paths of the parts whose names begin with a prefix, sorted.

    :param where: prefix of errors
    :raises ConfigError: there are none, or the directory is not that of LibriSpeech
    """
    ending = ".zip" if use_zip else ""
    if prefix.split("-")[0] not in _SETS:
        raise FileError("%s: option 'prefix' is %r, but must begin with one of %s" % (where, prefix, ", ".join(_SETS)))
    if not os.path.isdir(path):
        raise FileError(
            "%s: option 'path' is %r, which is no directory (current directory: %s)" % (where, path, os.getcwd())
        )
    proof = os.path.join(path, _PROOF + ending)
    if not os.path.exists(proof):
        raise FileError(
            "%s: %r does not exist, so 'path' is not the directory of LibriSpeech with %s. Set use_zip=%s, or make an "
            "empty one if this part is not wanted"
            % (where, proof, "a zip file for every part" if use_zip else "a directory for every part", not use_zip)
        )
    pattern = os.path.join(path, prefix + "*" + ending)
    found = glob.glob(os.path.join(glob.escape(path), glob.escape(prefix) + "*" + ending))
    found = sorted(part for part in found if use_zip or os.path.isdir(part))
    if not found:
        raise FileError("%s: there is no %r" % (where, pattern))
    return found


class LibriSpeechIndex:
    """The utterances of parts, sorted by part, speaker, chapter and number.

    :param parts: sorted by name
    :param use_ogg: the audio files are Ogg, named after the Flac files
    :param tag_format: of the tags
    :param post_process: applied to the texts
    """

    def __init__(self, parts: Sequence[Part], *, use_ogg: bool, tag_format: str, post_process: Callable[[str], str]):
        self.parts = parts
        self._ending = ".flac.ogg" if use_ogg else ".flac"
        self._format = tag_format
        self._post_process = post_process
        paths = [path for part in parts for path in part.files()]
        options = [use_ogg, [[part.name, part.path] for part in parts]]
        index = shared_index("librispeech", paths, options, self._read)
        self._texts = PackedStrings.of_arrays(index.part("texts"))
        self._facts = index.arrays["facts"].reshape(-1, 5)
        #: utterances in the order of the corpus
        self.order: NDArray[np.int64] = index.arrays["order"]
        for number, part in enumerate(parts):
            members = index.arrays.get("members.%d" % number)
            if members is not None and isinstance(part, ZipPart):
                part.open_with(members)

    def _read(self) -> SharedIndex:
        """Read the texts, and find the audio: part, speaker, chapter, number, row of the audio for each utterance."""
        texts, facts = PackedStrings(), array("q")
        arrays: dict[str, NDArray[Any]] = {}
        for number, part in enumerate(self.parts):
            self._add(number, part, texts, facts)
            part.forget_names()
            members = part.members
            if members is not None:
                arrays["members.%d" % number] = members
        found = np.asarray(facts).reshape(-1, 5)
        order = np.lexsort(found[:, 3::-1].T).astype(np.int64)
        return SharedIndex({**named("texts", texts.arrays()), **arrays, "facts": np.asarray(facts), "order": order})

    def _add(self, number: int, part: Part, texts: PackedStrings, facts: array[int]) -> None:
        before = len(texts)
        for path, content in part.transcripts():
            for line in filter(None, (line.strip() for line in content.split("\n"))):
                match = _LINE.fullmatch(line)
                if not match:
                    raise FileDataError(
                        "transcript %r: the line %r does not have the form 'speaker-chapter-number text'"
                        % (path, line[:100])
                    )
                *ids, text = match.groups()
                facts.extend([number, *map(int, ids), part.locate(self._audio_name(*ids))])
                texts.append(text or "")
        if len(texts) == before:
            raise FileDataError(
                "%r has no transcripts <speaker>/<chapter>/<speaker>-<chapter>.trans.txt%s"
                % (part.path, "; was the zip file renamed?" if isinstance(part, ZipPart) else "")
            )

    def _audio_name(self, speaker: str, chapter: str, number: str) -> str:
        return "%s/%s/%s-%s-%s%s" % (speaker, chapter, speaker, chapter, number, self._ending)

    def __len__(self) -> int:
        return len(self.order)

    def _name(self, index: int) -> tuple[Part, str, int]:
        number, speaker, chapter, utterance, row = (int(n) for n in self._facts[self.order[index]])
        return self.parts[number], self._audio_name(str(speaker), str(chapter), "%04i" % utterance), row

    def tag(self, index: int) -> str:
        """Return the tag of an utterance."""
        number, speaker, chapter, utterance, _ = (int(n) for n in self._facts[self.order[index]])
        facts = {"subdir": self.parts[number].name, "speaker": speaker, "chapter": chapter, "seq": utterance}
        return self._format % facts

    def text(self, index: int) -> str:
        """Return the text of an utterance, after ``orth_post_process``."""
        return self._post_process(self._texts[int(self.order[index])])

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of characters of each text; DataError, naming the utterance, if it can't be processed."""
        return np.fromiter(map(self._length, range(len(self))), np.int64, len(self))

    def _length(self, index: int) -> int:
        try:
            return len(self.text(index))
        except DataError as exc:
            raise FileDataError("utterance %r: %s" % (self.tag(index), exc)) from exc

    def part_names(self) -> NDArray[np.object_]:
        """Return the name of the part of each utterance."""
        names: NDArray[np.object_] = np.asarray([part.name for part in self.parts], dtype=object)[
            self._facts[self.order, 0]
        ]
        return names

    def file_of(self, index: int) -> str:
        """Return the place of the audio of an utterance, for messages."""
        part, name, _ = self._name(index)
        return part.file(name)

    def audio(self, index: int) -> Union[bytes, str]:
        """Return the content of the audio file of an utterance, or its path."""
        part, name, row = self._name(index)
        return part.audio(name, row)

    def close(self) -> None:
        """Close all files; they are reopened on demand."""
        for part in self.parts:
            part.close()


def open_parts(paths: Sequence[str], *, use_zip: bool, use_cache_manager: bool) -> list[Part]:
    """Open the parts of these paths."""
    part = ZipPart if use_zip else FolderPart
    return [part(path, use_cache_manager=use_cache_manager) for path in paths]


def check_tag_format(text: str) -> Optional[str]:
    """Return the fault of a format of tags, or None."""
    names = {"subdir": "dev-clean", "speaker": 84, "chapter": 121123, "seq": 1}
    try:
        example, other = text % names, text % {**names, "seq": 2}
    except (KeyError, ValueError, TypeError) as exc:
        return "must be a format of subdir, speaker, chapter and seq: %r fails with %s %s" % (
            text,
            type(exc).__name__,
            exc,
        )
    if not example:
        return "must not be empty"
    return None if example != other else "must hold %(seq)04i or the like, else several sequences have the same tag"


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf8")
    except UnicodeDecodeError as exc:
        raise FileDataError("transcript %r is not UTF-8 text: %s" % (name, exc)) from exc


_CLASSES = {"bpe": "BytePairEncoding", "chars": "CharacterTargets"}
_SUBSET_SEED = 42


@register_dataset()
class LibriSpeechCorpus(UtterancesInFiles[LibriSpeechIndex]):
    """The parts of LibriSpeech whose names begin with ``prefix``: zip files, or directories as they were unpacked.

    A zip file has the name of its part, e.g. train-clean-100.zip. The length of a sequence for ``sorted`` etc. is the
    number of characters of its text.

    Data keys: ``data`` are features, ``classes`` labels, ``raw`` is the text. Without audio ``data`` is a zero.

    >>> from returnn_tf.datasets import Dataset
    >>> dev = {"class": "LibriSpeechCorpus", "path": "LibriSpeech", "use_zip": True, "prefix": "dev", "audio": {},
    ...        "bpe": {"bpe_file": "bpe.codes", "vocab_file": "bpe.vocab", "unknown_label": "<unk>"}}
    >>> dataset = Dataset.from_config(dev)   # doctest: +SKIP
    """

    @dataclass
    class Options(UtteranceDataset.Options):
        path: str = option(help="directory of the corpus; train-clean-100 must be there")
        prefix: str = option(help="parts to read, by the beginning of their names: 'train', 'dev', 'test-other', ...")
        audio: Optional[dict[str, Any]] = option(
            help="options of the features, {} for all defaults; None: without audio"
        )
        orth_post_process: Any = option(None, help="functions on the text: names, functions or a list of these")
        targets: Optional[Any] = option(
            None, help="options of the vocabulary, or 'bpe' or 'chars'; None: by which of these options is given"
        )
        chars: Optional[dict[str, Any]] = option(None, help="options of a vocabulary of characters")
        bpe: Optional[dict[str, Any]] = option(None, help="options of a BPE vocabulary")
        use_zip: bool = option(False, help="the parts are zip files")
        use_ogg: bool = option(False, help="the audio files are Ogg, '.ogg' appended to the names of the Flac files")
        use_cache_manager: bool = option(
            False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
        )
        fixed_random_subset: Union[None, float] = option(
            None, help="keep this number of sequences, below 1 this fraction of them, chosen and shuffled at random"
        )
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None,
            help="a part of the corpus in some epochs: {(first, last): {'subdirs': [...], 'max_mean_len': characters, "
            "'use_new_filter': True}}",
        )
        seq_tag_format: str = option(
            "%(subdir)s-%(speaker)i-%(chapter)i-%(seq)04i", help="format of the tags", check=check_tag_format
        )

    def setup(self) -> None:
        """Check all options and that files exist; they are read when the first epoch begins."""
        opts = self.opts
        if not self._given.get("name"):
            self.name = "prefix:%s" % opts.prefix
        self.set_up(audio=opts.audio, targets=self._target_options())
        self._paths = find_parts(opts.path, opts.prefix, use_zip=opts.use_zip, where=self._owner())
        self._filter = EpochFilter.parse(
            opts.epoch_wise_filter, owner=self._owner(), options=("subdirs", "use_new_filter", "max_mean_len")
        )
        self._post_process = make_post_processing(opts.orth_post_process, owner="%s: orth_post_process" % self._owner())
        random_subset(0, opts.fixed_random_subset, 0, self._owner())
        data = self.feature_spec() if self.features else DataSpec(dim=0, ndim=0, dtype="float64")
        self.data_specs = {"data": data, "raw": DataSpec(dim=0, ndim=0, dtype="object")}
        if self.targets is not None:
            self.data_specs = {"classes": self.target_spec(), **self.data_specs}

    def _target_options(self) -> Optional[Any]:
        """Return the options of the vocabulary."""
        opts = self.opts
        given = [name for name in _CLASSES if getattr(opts, name) is not None]
        targets = opts.targets
        if targets is not None and not isinstance(targets, str):
            if given:
                raise FileError("%s: give 'targets' or %r, not both" % (self._owner(), given[0]))
            return targets
        if isinstance(targets, str) and targets not in _CLASSES:
            hint = did_you_mean(targets, _CLASSES)
            raise FileError("%s: option 'targets' is %r. %s" % (self._owner(), targets, hint))
        if len(given) == 2:
            raise FileError("%s: give 'bpe' or 'chars', not both" % self._owner())
        if targets is not None and given != [targets]:
            raise FileError("%s: targets=%r needs the option %r" % (self._owner(), targets, targets))
        return {"class": _CLASSES[given[0]], **getattr(opts, given[0])} if given else None

    def read_index(self) -> LibriSpeechIndex:
        """Read the names and texts, and choose the sequences."""
        opts = self.opts
        index = LibriSpeechIndex(
            open_parts(self._paths, use_zip=opts.use_zip, use_cache_manager=opts.use_cache_manager),
            use_ogg=opts.use_ogg,
            tag_format=opts.seq_tag_format,
            post_process=self._post_process,
        )
        order = random_subset(len(index), opts.fixed_random_subset, _SUBSET_SEED, self._owner())
        if order is not None:
            index.order = index.order[order]
        return index

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of an epoch, after ``epoch_wise_filter``."""
        order = super().seq_order(epoch)
        assert order is not None
        for entry in self._filter.at(max(epoch, 1)):
            order = self._filtered_by(entry, order, epoch)
        return order

    def _filtered_by(self, entry: Mapping[str, Any], order: NDArray[Any], epoch: int) -> NDArray[Any]:
        subdirs = entry.get("subdirs")
        if subdirs is not None:
            names = [subdirs] if isinstance(subdirs, str) else list(subdirs)
            order = order[np.isin(self.index.part_names()[order].astype(str), names)]
            if not len(order):
                raise FileDataError(
                    "%s: epoch %d is empty: epoch_wise_filter wants the subdirs %r. %s"
                    % (self._owner(), epoch, names, did_you_mean(str(names[0] if names else ""), self._part_names()))
                )
        new_filter = bool(entry.get("use_new_filter", False))
        lengths = self.needed_lengths()[order]
        return limit_mean_length(order, lengths, entry.get("max_mean_len"), new_filter=new_filter)

    def _part_names(self) -> list[str]:
        return [part.name for part in self.index.parts]
