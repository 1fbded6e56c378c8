"""Corpora of speech in the formats of other toolkits: what their datasets share once a format is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError, FileError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.core.data_spec import DataSpec, spec_of_array
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.safe_files import path_of
from returnn_tf.datasets.core.tags import warn_of_unknown
from returnn_tf.datasets.speech.utterances import (
    ChosenUtteranceOptions,
    IndexedUtterances,
    random_subset,
)
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.util.packed_strings import PackedStrings


class Utterances(Protocol):
    """The utterances of a corpus, read from its files; the methods may be called in several threads."""

    #: the tag of each
    tags: PackedStrings

    def place(self, entry: int) -> str:
        """Return where an utterance is declared, e.g. a file and a line, for errors."""

    def text(self, entry: int) -> str:
        """Return the transcription; DataError if there is none."""

    def file_of(self, entry: int) -> str:
        """Return the file with the audio, for errors."""

    def samples(self, entry: int, features: AudioFeatures) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate.

        :param features: decodes audio files
        """

    def lengths(self) -> NDArray[np.int64]:
        """Return the lengths of all by which they are ordered; DataError if they are not known."""

    def close(self) -> None:
        """Close the files; they are reopened on demand."""


class UtterancesWithArrays(Utterances, Protocol):
    """Utterances with matrices or vectors beside the audio, or in place of it."""

    def array(self, name: str, entry: int) -> NDArray[Any]:
        """Return a matrix or vector; DataError if there is none."""


def hundredths(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return durations in units of 10 ms, as datasets of speech order by them."""
    lengths: NDArray[np.int64] = np.floor(seconds * 100 + 1e-6).astype(np.int64)
    return lengths


def check_tags(tags: PackedStrings, place: Callable[[int], str]) -> None:
    """Check that tags differ, once for all processes: while their index is made.

    :param place: returns where an utterance is declared
    :raises DataError: two are the same; names the places of both
    """
    twice = tags.repeated()
    if twice:
        first = next(entry for entry, tag in enumerate(tags) if tag == tags[twice[0]])
        text = "%s: the tag %r is that of %s, too, but tags must differ"
        raise FileDataError(text % (place(twice[0]), tags[first], place(first)))


class ChosenUtterances:
    """Those utterances of a corpus that the options keep.

    :param entries: their numbers in the corpus, in the order of the dataset; None: all in the order of the corpus
    """

    def __init__(self, corpus: Utterances, entries: Optional[NDArray[np.int64]]):
        self.corpus = corpus
        self._entries = entries

    def __len__(self) -> int:
        return len(self.corpus.tags if self._entries is None else self._entries)

    def __getitem__(self, index: int) -> int:
        return index if self._entries is None else int(self._entries[index])

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several utterances."""
        return self.corpus.tags.chosen(indices if self._entries is None else self._entries[indices].tolist())

    def digest_of_tags(self) -> Optional[bytes]:
        """Return a digest of the tags; None if some are chosen."""
        return self.corpus.tags.digest() if self._entries is None else None

    def lengths(self) -> NDArray[np.int64]:
        """Return the lengths by which they are ordered; DataError if they are not known."""
        lengths = self.corpus.lengths()
        return lengths if self._entries is None else lengths[self._entries]


class CorpusDataset(IndexedUtterances[ChosenUtterances]):
    """A dataset of a corpus in a format of its own; a subclass implements `open_corpus`.

    Its options are those that all such datasets have: for the features, the labels, and which utterances are kept.
    """

    @dataclass
    class Options(ChosenUtteranceOptions):
        path: Union[str, list[Any]] = option(help="the corpus, or a list of several that become one")
        audio: Optional[dict[str, Any]] = option(
            None, help="options of the features, {} for all defaults; None: without audio"
        )
        targets: Optional[Any] = option(None, help="options of the vocabulary, or a vocabulary; None: without labels")
        orth_post_process: Any = option(None, help="functions on the text: names, functions or a list of these")
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None,
            help="only the shortest sequences in some epochs: {(first, last): {'max_mean_len': x}}, by the lengths "
            "that order them",
        )

    def setup(self) -> None:
        """Check all options; the corpus is read when the first epoch begins."""
        opts = self.opts
        self.set_up(audio=opts.audio, targets=opts.targets)
        self.paths = self._checked_paths()
        self._filter = EpochFilter.parse(opts.epoch_wise_filter, owner=self._owner())
        self._post_process = make_post_processing(opts.orth_post_process, owner="%s: orth_post_process" % self._owner())
        random_subset(0, opts.fixed_random_subset, 0, self._owner())
        has_text = self.has_text()
        for name, is_given in (("targets", self.targets is not None), ("orth_post_process", opts.orth_post_process)):
            if is_given and not has_text:
                raise FileError("%s: option %r needs texts, but the corpus is without" % (self._owner(), name))
        self.data_specs = self.specs_by_key()
        if not self.data_specs and not getattr(opts, "arrays", None):
            text = "%s: there is no data key: the corpus has no texts, and the option 'audio' is not given"
            raise FileError(text % self._owner())

    def _checked_paths(self) -> list[str]:
        given = self.opts.path if isinstance(self.opts.path, (list, tuple)) else [self.opts.path]
        if not given:
            raise FileError("%s: option 'path' is empty" % self._owner())
        return [path_of(path, where="%s: option 'path'" % self._owner()) for path in given]

    def specs_by_key(self) -> dict[str, DataSpec]:
        """Return the format of all data keys that the options and the corpus allow."""
        without = () if self.has_text() else ("orth", "raw")
        return {key: spec for key, spec in super().specs_by_key().items() if key not in without}

    def has_text(self) -> bool:
        """Return whether the corpus has texts."""
        return True

    def open_corpus(self) -> Utterances:
        """Read which utterances there are.

        :raises DataError: a file is missing, damaged or of another format; names it
        """
        raise NotImplementedError("%s.open_corpus" % type(self).__name__)

    def read_index(self) -> ChosenUtterances:
        """Read the corpus, and choose the utterances."""
        opts = self.opts
        with self._wanted_by("path"):
            corpus = self.open_corpus()
        tags = corpus.tags
        if not len(tags):
            raise FileDataError("%s: there are no utterances in %s" % (self._owner(), ", ".join(map(repr, self.paths))))
        entries = None
        allowed = self.tags_of_segment_file()
        if allowed is not None:
            entries = np.flatnonzero(np.fromiter((tag in allowed for tag in tags), bool, len(tags)))
            if not len(entries):
                text = "%s: none of its %d sequences is in segment_file %r (%d tags)"
                raise FileDataError(text % (self._owner(), len(tags), opts.segment_file, len(allowed)))
            warn_of_unknown(self._owner(), "segment_file", opts.segment_file, allowed, tags)
        count = len(tags if entries is None else entries)
        order = random_subset(count, opts.fixed_random_subset, opts.fixed_random_subset_seed, self._owner())
        return ChosenUtterances(corpus, entries if order is None else order if entries is None else entries[order])

    def tag(self, index: int) -> str:
        """Return the tag."""
        return self.index.corpus.tags[self.index[index]]

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several sequences."""
        return self.index.tags_many(indices)

    def digest_of_tags(self) -> Optional[bytes]:
        """Return a digest of the tags; None if some are chosen."""
        return self.index.digest_of_tags()

    def text(self, index: int) -> str:
        """Return the transcription after ``orth_post_process``."""
        return self._post_process(self.index.corpus.text(self.index[index]))

    def file_of(self, index: int) -> str:
        """Return the file with the audio."""
        return self.index.corpus.file_of(self.index[index])

    def samples(self, index: int) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate."""
        assert self.features is not None
        return self.index.corpus.samples(self.index[index], self.features)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a sequence; errors name the place where it is declared."""
        try:
            return super().read_again(index, epoch, keys, nth)
        except DataError as exc:
            raise FileDataError("%s: %s" % (self.index.corpus.place(self.index[index]), exc)) from exc

    def seq_lengths(self) -> NDArray[Any]:
        """Return the lengths [num_seqs] by which sequences are ordered."""
        chosen = self.index
        with self._wanted_by("path"):
            return chosen.lengths()

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of an epoch, after ``epoch_wise_filter``."""
        order = super().seq_order(epoch)
        assert order is not None
        for entry in self._filter.at(max(epoch, 1)):
            order = limit_mean_length(order, self.needed_lengths()[order], entry.get("max_mean_len"))
        return order

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        if self._index is not None:
            self._index.corpus.close()


class CorpusWithArrays(CorpusDataset):
    """A corpus with matrices or vectors as further data keys; a subclass also implements `first_array`."""

    @dataclass
    class Options(CorpusDataset.Options):
        arrays: Optional[dict[str, Any]] = option(None, help="{data key: where its matrices or vectors are}")

    def setup(self) -> None:
        """Check all options, and read the first of each array; the rest is read when the first epoch begins."""
        self.arrays = self._checked_arrays()
        super().setup()
        with self._wanted_by("arrays"):
            specs = {key: spec_of_array(self.first_array(name)) for key, name in self.arrays.items()}
        self.data_specs = {**self.data_specs, **self.windowed(specs)}

    def _checked_arrays(self) -> dict[str, str]:
        opts = self.opts
        arrays = opts.arrays or {}
        taken = {"data": opts.audio is not None, "classes": opts.targets is not None, "orth": True, "raw": True}
        options = {"data": "option 'audio'", "classes": "option 'targets'"}
        for key, name in arrays.items():
            if not isinstance(key, str) or not isinstance(name, str):
                text = "%s: option 'arrays' must map data keys to names, not %s to %s"
                raise FileError(text % (self._owner(), shown(key), shown(name)))
            if taken.get(key):
                by = options.get(key, "text")
                raise FileError("%s: option 'arrays': the key %r is that of the %s" % (self._owner(), key, by))
        return dict(arrays)

    def first_array(self, name: str) -> NDArray[Any]:
        """Return the first matrix or vector, from which the format follows; DataError if there is none."""
        raise NotImplementedError("%s.first_array" % type(self).__name__)

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key."""
        return {**super().num_outputs, **{key: self._dims_by_key()[key] for key in self.arrays}}

    @property
    def num_inputs(self) -> int:
        """Return the dim of "data"; 0 without."""
        return self._dims_by_key()["data"][0] if "data" in self.arrays else super().num_inputs

    def open_corpus(self) -> UtterancesWithArrays:
        """Read which utterances there are, see `CorpusDataset`."""
        raise NotImplementedError("%s.open_corpus" % type(self).__name__)

    def _read_key(self, key: str, index: int, seed: list[int]) -> NDArray[Any]:
        if key not in self.arrays:
            return super()._read_key(key, index, seed)
        corpus: Any = self.index.corpus  # what open_corpus has returned
        array: NDArray[Any] = corpus.array(self.arrays[key], self.index[index])
        return array
