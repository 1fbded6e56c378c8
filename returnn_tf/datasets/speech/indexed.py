"""Corpora of speech with an index, which is read when it is needed first."""

from __future__ import annotations

import threading
from typing import Any, Generic, Optional, Protocol, TypeVar, Union

from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.safe_files import read_lines
from returnn_tf.datasets.speech.utterances import UtteranceDataset


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
            raise DataError("%s: %s" % (self._owner(), exc)) from exc

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
        return self.index.lengths()

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        if self._index is not None:
            self._index.close()
