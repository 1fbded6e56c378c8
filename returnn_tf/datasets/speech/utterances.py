"""Common base of corpora of speech: features of audio, labels of transcriptions, and an index read on demand."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Optional, Protocol, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DataError, FileDataError, FileError
from returnn_tf.config.options import between, option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.heard import AudibleDataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.read_ahead import ReadAheadOptions
from returnn_tf.datasets.core.safe_files import read_lines
from returnn_tf.datasets.vocabulary import make_vocabulary

#: The format of the text as a string without time axis.
RAW = {"dtype": "string", "shape": ()}
_UNUSED_RNG = np.random.RandomState(0)
_BYTES = tuple(map(chr, range(256)))


class UtteranceDataset(AudibleDataset):
    """A dataset of audio files with transcriptions.

    A subclass calls `set_up`, and implements ``num_seqs``, ``tag``, `text` and `audio`. Of its data keys, ``data`` are
    features, ``classes`` labels, ``orth`` the bytes of the text in UTF-8, and ``raw`` is the text as a string.
    """

    @dataclass
    class Options(ReadAheadOptions):
        """Options in the config."""

    def set_up(self, *, audio: Optional[Any], targets: Optional[Any]) -> None:
        """Make the features and the vocabulary; None: without.

        :param audio: options of `AudioFeatures`
        :param targets: options of a vocabulary, or an object with ``get_seq`` and ``labels``
        """
        self.features = None if audio is None else AudioFeatures.make(audio, owner=self._owner())
        is_object = callable(getattr(targets, "get_seq", None))
        where = "%s: targets" % self._owner()
        self.targets: Any = targets if is_object or targets is None else make_vocabulary(targets, owner=where)
        self._labels_lock = threading.Lock()

    @property
    def read_threads(self) -> int:
        """Return the number of threads that read ahead; without audio there is nothing to decode."""
        return 1 if self.features is None else self.features.threads(self.opts.read_threads)

    def feature_spec(self) -> DataSpec:
        """Return the format of the features, with the option ``window``."""
        assert self.features is not None
        return self.windowed({"data": self.features.spec})["data"]

    def target_spec(self) -> DataSpec:
        """Return the format of the labels."""
        labels = getattr(self.targets, "labels", None)
        labels = list(labels) if isinstance(labels, (list, tuple)) else None
        dim = getattr(self.targets, "num_labels", None)
        if dim is None and labels is None:
            raise FileError("%s: targets %r have neither num_labels nor labels" % (self._owner(), self.targets))
        return DataSpec(
            dim=int(len(labels or ()) if dim is None else dim),
            ndim=1,
            dtype="int32",
            labels=None if labels is None else tuple(map(str, labels)),
        )

    @staticmethod
    def orth_spec() -> DataSpec:
        """Return the format of the text as bytes."""
        return DataSpec(dim=256, ndim=1, dtype="uint8", labels=_BYTES)

    @staticmethod
    def raw_spec() -> DataSpec:
        """Return the format of the text as a string."""
        return DataSpec(dim=0, ndim=0, dtype="string")

    def specs_by_key(self) -> dict[str, DataSpec]:
        """Return the format of all data keys that the options allow."""
        specs = {
            "data": self.feature_spec() if self.features else None,
            "classes": self.target_spec() if self.targets is not None else None,
            "orth": self.orth_spec(),
            "raw": self.raw_spec(),
        }
        return {key: spec for key, spec in specs.items() if spec is not None}

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key; of the text as a string a dict with dtype and shape."""
        outputs: dict[str, Any] = dict(super().num_outputs)
        if "raw" in outputs:
            outputs["raw"] = dict(RAW)
        if self.features is None:
            outputs.pop("data", None)
        return outputs

    @property
    def num_inputs(self) -> int:
        """Return the dim of the features; 0 without."""
        return 0 if self.features is None else self.features.dim

    # ---- implemented by subclasses

    def text(self, index: int) -> str:
        """Return the transcription."""
        raise NotImplementedError("%s.text" % type(self).__name__)

    def target_text(self, index: int) -> str:
        """Return the text of which the labels are made."""
        return self.text(index)

    def audio(self, index: int) -> tuple[Union[bytes, str], str]:
        """Return the audio file, as content or path, and its name for errors."""
        raise NotImplementedError("%s.audio" % type(self).__name__)

    # ---- data

    def samples(self, index: int) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate of the audio."""
        assert self.features is not None
        content, name = self.audio(index)
        return self.features.read(content, name=name)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the data of one sequence. What is random depends on epoch and index only."""
        return self.read_again(index, epoch, keys, 0)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a sequence with other random numbers than before."""
        seed = [self.epoch_seed(epoch), index, *([nth] if nth else [])]
        return {key: self._read_key(key, index, seed) for key in keys}

    @property
    def redraws(self) -> bool:
        """Return whether features or labels are random."""
        is_seeded = hasattr(self.targets, "set_random_seed")
        draws = self.features is not None and self.features.draws
        return draws or bool(getattr(self.targets, "is_random", is_seeded))

    def _read_key(self, key: str, index: int, seed: list[int]) -> NDArray[Any]:
        if key == "data":
            return self._data(index, seed)
        if key == "classes":
            return self._labels(index, seed)
        text = self.text(index)
        return np.array(text, dtype=object) if key == "raw" else np.frombuffer(_encoded(text), np.uint8)

    @property
    def reads_audio(self) -> bool:
        """Return whether it computes features of audio."""
        return self.features is not None

    def heard(self, index: int, epoch: int) -> tuple[NDArray[Any], int]:
        """Return audio and sample rate, see `AudibleDataset.heard`."""
        assert self.features is not None
        return self._of_audio(index, [self.epoch_seed(epoch), index], self.features.heard)

    def _data(self, index: int, seed: list[int]) -> NDArray[Any]:
        if self.features is None:
            return np.zeros((), np.float64)
        return self._of_audio(index, seed, functools.partial(self.features.extract, seq_name=self.tag(index)))[0]

    def _of_audio(self, index: int, seed: list[int], compute: Callable[..., NDArray[Any]]) -> tuple[NDArray[Any], int]:
        """Return what a method of the features computes of the audio of a sequence, and the sample rate."""
        assert self.features is not None
        samples, rate = self.samples(index)
        rng = np.random.RandomState(seed) if self.features.draws else _UNUSED_RNG  # to make one takes 0.2 ms
        try:
            return compute(samples, rate, rng=rng), rate
        except (ConfigError, DataError) as exc:
            raise FileDataError("audio file %r: %s" % (self.file_of(index), exc)) from exc

    def _labels(self, index: int, seed: list[int]) -> NDArray[Any]:
        with self._labels_lock:  # a vocabulary that samples has one generator, and functions are those of the user
            if hasattr(self.targets, "set_random_seed"):
                number = np.random.SeedSequence(seed).generate_state(1)[0]
                self.targets.set_random_seed(int(number))  # objects of users may not take a list
            return np.asarray(self.targets.get_seq(self.target_text(index)), np.int32)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf8")
    except UnicodeEncodeError as exc:
        raise FileDataError("its text %r has characters that UTF-8 lacks: %s" % (text[:100], exc)) from None


@dataclass
class ChosenUtteranceOptions(UtteranceDataset.Options):
    """The options of corpora of which a part may be read."""

    segment_file: Optional[str] = option(None, help="only these tags: text file, one per line, .gz allowed")
    fixed_random_subset: Union[None, float] = option(
        None, help="keep this number of sequences, below 1 this fraction of them, chosen and shuffled at random"
    )
    fixed_random_subset_seed: int = option(42, help="seed of this choice", check=between(0, 2**32 - 1))
    use_cache_manager: bool = option(
        False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
    )


def random_subset(count: int, subset: Optional[float], seed: int, owner: str) -> Optional[NDArray[Any]]:
    """Return the entries that the option ``fixed_random_subset`` keeps, in its order; None: all.

    :param count: number of entries
    :param subset: number of entries; below 1 a fraction of them; 0 or None: all
    """
    if not subset:
        return None
    if not 0 < subset < np.inf or (subset > 1 and subset != int(subset)):
        raise FileError(
            "%s: option 'fixed_random_subset' is %r, but must be a number of sequences, or a fraction below 1"
            % (owner, subset)
        )
    kept = int(subset * count) if subset < 1 else int(subset)
    if count and not kept:
        raise FileError(
            "%s: option 'fixed_random_subset' is %r, which leaves none of %d sequences" % (owner, subset, count)
        )
    order = list(range(count))  # a list: an array would be shuffled in another way by some versions of numpy
    np.random.RandomState(seed).shuffle(order)
    return np.asarray(order[:kept], np.int64)


class Index(Protocol):
    """The sequences of a corpus."""

    def __len__(self) -> int: ...


class IndexOfFiles(Index, Protocol):
    """The sequences of a corpus with one audio file for each."""

    def tag(self, index: int) -> str:
        """Return the tag of a sequence."""

    def text(self, index: int) -> str:
        """Return the transcription."""

    def file_of(self, index: int) -> str:
        """Return the audio file, for messages."""

    def audio(self, index: int) -> Union[bytes, str]:
        """Return the content of the audio file, or its path."""

    def lengths(self) -> NDArray[Any]:
        """Return the lengths by which sequences are ordered."""

    def close(self) -> None:
        """Close the files."""


SomeIndex = TypeVar("SomeIndex", bound=Index)
SomeIndexOfFiles = TypeVar("SomeIndexOfFiles", bound=IndexOfFiles)


class IndexedUtterances(UtteranceDataset, Generic[SomeIndex]):
    """A dataset of speech with an index; a subclass implements `read_index`."""

    def set_up(self, *, audio: Optional[Any], targets: Optional[Any]) -> None:
        """Make the features and the vocabulary, see `UtteranceDataset.set_up`."""
        super().set_up(audio=audio, targets=targets)
        self._index: Optional[SomeIndex] = None
        self._lock = threading.Lock()

    def read_index(self) -> SomeIndex:
        """Read the index."""
        raise NotImplementedError("%s.read_index" % type(self).__name__)

    @property
    def index(self) -> SomeIndex:
        """Return the index of the corpus, which is read when it is needed first."""
        with self._lock:
            if self._index is None:
                self._index = self._read_index()
            return self._index

    def _read_index(self) -> SomeIndex:
        try:
            return self.read_index()
        except DataError as exc:  # of a file, which does not know its dataset
            if str(exc).startswith(self._owner()):
                raise
            raise FileDataError("%s: %s" % (self._owner(), exc)) from exc

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences."""
        return len(self.index)

    def tags_of_segment_file(self) -> Optional[frozenset[str]]:
        """Return the tags in the file of the option ``segment_file``; None: it is not given, or empty."""
        if not self.opts.segment_file:
            return None
        with self._wanted_by("segment_file"):
            return frozenset(read_lines(self.opts.segment_file)) or None


class UtterancesInFiles(IndexedUtterances[SomeIndexOfFiles]):
    """A dataset of speech with one audio file for each sequence."""

    def tag(self, index: int) -> str:
        """Return the tag."""
        return self.index.tag(index)

    def text(self, index: int) -> str:
        """Return the transcription."""
        return self.index.text(index)

    def file_of(self, index: int) -> str:
        """Return the audio file."""
        return self.index.file_of(index)

    def audio(self, index: int) -> tuple[Union[bytes, str], str]:
        """Return the content of the audio file, or its path, and its name for errors."""
        return self.index.audio(index), self.file_of(index)

    def seq_lengths(self) -> NDArray[Any]:
        """Return the lengths [num_seqs] by which sequences are ordered."""
        index = self.index
        try:
            return index.lengths()
        except DataError as exc:  # of a file, which does not know its dataset
            raise FileDataError("%s: %s" % (self._owner(), exc)) from exc

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        if self._index is not None:
            self._index.close()
