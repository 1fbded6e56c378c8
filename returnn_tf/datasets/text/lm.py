"""LmDataset: lines of text as labels, for language models."""

from __future__ import annotations

import bisect
import functools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, TextDataError, TextError
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.epoch import Epoch, EpochReader, reading_error
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import path_of, read_seq_tags, wanted_by
from returnn_tf.datasets.core.share import ALL, Chosen
from returnn_tf.datasets.files import is_url, local_copy
from returnn_tf.datasets.text.lines import LineTags, TextLines
from returnn_tf.datasets.text.lm_options import LmOptions
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.datasets.text.text_to_labels import PhoneText, make_text_to_labels
from returnn_tf.logging.log import log
from returnn_tf.util.random_state import set_state, state_of


class CorpusLines:
    """Files as one corpus; they are opened when they are first needed.

    :param opts: of the dataset
    :param where: prefix of errors
    :raises DataError: a file given by its path is missing
    """

    def __init__(self, opts: LmOptions, where: str) -> None:
        self._opts = opts
        self._where = where
        self._files: list[TextLines] = []
        self._ends: list[int] = []  # number of lines up to the end of each file
        self._tags: Optional[list[str]] = None
        self._line_tags = LineTags("line-" if opts.tag_prefix is None else opts.tag_prefix, where)
        if not callable(opts.corpus_file):
            self._paths()

    def _paths(self) -> list[str]:
        given: Any = self._opts.corpus_file
        where = "%s: corpus_file" % self._where
        given = result_of_config(where, given) if callable(given) else given
        paths = [path_of(path, where=where) for path in _as_list(given)]
        if not paths:
            raise TextError("%s: corpus_file names no file." % self._where)
        for path in paths:
            if not is_url(path) and not os.path.isfile(path):
                problem = "is not a file" if os.path.exists(path) else "does not exist"
                raise TextDataError(
                    "%s: corpus_file %r %s (current directory: %s)." % (self._where, path, problem, os.getcwd())
                )
        return paths

    def _open(self) -> None:
        if self._ends:
            return
        files = [self._opened(path) for path in self._paths()]
        ends = np.cumsum([len(file) for file in files])
        self._tags = self._read_tags(files)
        limit = self._opts.debug_limit_line_count
        self._files = files
        self._ends = [int(end) if limit is None else min(int(end), limit) for end in ends]

    def _opened(self, path: str) -> TextLines:
        local = local_copy(path, wanted=self._opts.use_cache_manager)
        lines = TextLines(local, skip_empty=self._opts.skip_empty_lines, keep_open_end=False, name=path)
        if lines.has_open_end and not lines.keeps_open_end:
            # as in RETURNN, so that numbers of sequences and lists of tags stay the same
            log.warn("%s: file %r does not end with a newline, so its last line is not read" % (self._where, path))
        return lines

    def _read_tags(self, files: list[TextLines]) -> Optional[list[str]]:
        given = self._opts.seq_list_file
        if not given:
            return None
        where = "%s: option 'seq_list_file'" % self._where
        if isinstance(given, str):
            with wanted_by(where):
                tags = read_seq_tags(given)
            self._check_number(given, tags, "the corpus", sum(len(file) for file in files))
            return tags
        if len(given) != len(files):
            text = "%s: there are %d files in seq_list_file, but %d in corpus_file."
            raise TextError(text % (self._where, len(given), len(files)))
        tags = []
        for path, file in zip(given, files):
            with wanted_by(where):
                more = read_seq_tags(path)
            self._check_number(path, more, "file %r" % file.path, len(file))
            tags += more
        return tags

    def _check_number(self, path: str, tags: list[str], what: str, num_lines: int) -> None:
        if len(tags) != num_lines:
            text = "%s: seq_list_file %r has %d tags, but %s has %d sequences%s."
            kept = " (empty lines do not count)" if self._opts.skip_empty_lines else ""
            raise TextDataError(text % (self._where, path, len(tags), what, num_lines, kept))

    def __len__(self) -> int:
        self._open()
        return self._ends[-1]

    def _locate(self, index: int) -> tuple[TextLines, int]:
        self._open()
        if len(self._files) == 1:
            return self._files[0], index
        number = bisect.bisect_right(self._ends, index)
        return self._files[number], index - (self._ends[number - 1] if number else 0)

    def text(self, index: int) -> str:
        """Return a line."""
        file, local = self._locate(index)
        return file.text(local)

    def place(self, index: int) -> str:
        """Return file and number of a line, for messages."""
        file, local = self._locate(index)
        return file.place(local)

    def file(self, index: int) -> str:
        """Return the path of the file."""
        return self._locate(index)[0].path

    def num_bytes(self) -> NDArray[Any]:
        """Return the number of bytes of each line."""
        self._open()
        joined = np.concatenate([file.num_bytes for file in self._files])[: self._ends[-1]]
        return joined.astype(np.int64)  # orders negate it

    def tag(self, index: int) -> str:
        """Return the tag of a line."""
        self._open()
        return self._line_tags.tag(index) if self._tags is None else self._tags[index]

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return the numbers in tags that were made of them; DataError for other tags."""
        return self._line_tags.indices(tags, len(self))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class InvalidSequence(DataError):
    """A sequence has what there is no label for."""

    class_topic = "text-data"


class InOrderEpoch(Epoch):
    """The sequences of an epoch, which share one stream of random numbers, or of which some are left out.

    :param dataset: has ``read_next(index, epoch, keys, rng, nth)``, which is called once for each sequence, in order
    :param epoch: number, from 1
    :param order: corpus indices in the order of reading
    :param keys: the data keys to read
    :param nth: number of earlier occurrences of each in the epoch
    :param by_itself: no random numbers run through the epoch
    :param skip_invalid: leave out sequences that raise `InvalidSequence`; later ones move up
    :param max_logged: number of those that are logged one by one
    """

    def __init__(
        self,
        dataset: Any,
        epoch: int,
        order: NDArray[Any],
        keys: list[str],
        nth: NDArray[Any],
        *,
        by_itself: bool,
        skip_invalid: bool,
        max_logged: int = 0,
    ) -> None:
        super().__init__(dataset, epoch, order, keys, nth)
        self._skip_invalid = skip_invalid
        self._max_logged = max_logged
        self._rng = None if by_itself else random.Random(dataset.epoch_seed(epoch))
        self._given = order
        self._nths = nth
        self._found: list[int] = []  # corpus indices of the sequences that were read
        self._next = 0
        self._read_ahead: dict[int, dict[str, NDArray[Any]]] = {}
        self._resumes: dict[int, tuple[int, Any]] = {}  # by position: the next one in the order, random numbers
        self._failed: dict[int, Exception] = {}
        self._num_skipped = 0

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None until it is known."""
        if self._skip_invalid and self._next < len(self._given):
            return None
        return len(self._found) if self._skip_invalid else len(self._given)

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position; reads up to it if sequences may be left out."""
        if not self._skip_invalid:
            return position < len(self._given)
        self._read_to(position)
        return position < len(self._found)

    def index(self, position: int) -> int:
        """Return the corpus position of the sequence at this position of the epoch."""
        if not self._skip_invalid:
            return int(self._given[position])
        self._read_to(position)
        return self._found[position]

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position."""
        return self._next / max(len(self._given), 1) if self._skip_invalid else (position + 1) / len(self._given)

    def resume(self, position: int) -> Any:
        """Return the next position in the order, and the state of the random numbers."""
        return list(self._resumes[position]) if position in self._resumes else None

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the sequences before a position."""
        if resume is not None:
            self._next, state = resume
            self._found = self._given[:position].tolist()  # as many; which ones they are does not matter any more
            if self._rng is not None:
                set_state(self._rng, state)
            return
        EpochReader.jump(self, position)
        self._read_to(position - 1)
        self._read_ahead.clear()

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        super().release(position)
        for old in [old for old in self._resumes if old < position - 1]:
            del self._resumes[old]

    def _read_to(self, position: int) -> None:
        while len(self._found) <= position and self._next < len(self._given):
            index = int(self._given[self._next])
            given = index, self.epoch, self.keys, self._rng, int(self._nths[self._next])
            self._next += 1
            try:
                self._read_ahead[len(self._found)] = self.dataset.read_next(*given)
            except Exception as exc:  # raised when the sequence is requested
                if self._skip_invalid and isinstance(exc, InvalidSequence):
                    self._count_skipped(index, exc)
                    continue
                self._failed[len(self._found)] = exc
            self._resumes[len(self._found)] = self._next, None if self._rng is None else state_of(self._rng)
            self._found.append(index)

    def _count_skipped(self, index: int, reason: DataError) -> None:
        self._num_skipped += 1
        if self._num_skipped <= self._max_logged:
            log.warn("dataset %r: sequence %r is skipped: %s" % (self.dataset.name, self.dataset.tag(index), reason))

    def close(self) -> None:
        """Log how many sequences were left out."""
        super().close()
        if self._num_skipped:
            text = "dataset %r: %d of %d sequences of epoch %d were skipped"
            log.warn(text % (self.dataset.name, self._num_skipped, self._next, self.epoch))
            self._num_skipped = 0

    def _read(self, position: int) -> Example:
        index = self.index(position)
        self._read_to(position)
        try:
            if position in self._failed:
                raise self._failed[position]
            data = self.dataset.with_window(self._read_ahead.pop(position))
        except Exception as exc:
            raise reading_error(self.place(position), exc) from exc
        return Example(index=index, tag=self.dataset.tag(index), data=data, position=position)


_INT_TYPES = ((128, "int8"), (256, "uint8"), (2**31, "int32"), (2**32, "uint32"))


@register_dataset()
class LmDataset(Dataset):
    """The lines of text files as labels of characters, words, pieces of words, or phonemes.

    The corpus is indexed once, when it is first needed; a line is read when its sequence is. The length by which
    ``sorted`` etc. order the corpus is the number of bytes of the line.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "LmDataset", "corpus_file": "train.txt.gz", "orth_vocab": {"vocab_file": "words.txt"}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(LmOptions):
        """Options in the config."""

    def setup(self) -> None:
        """Read the symbols; the corpus is opened later."""
        opts = self.opts
        self._to_labels = make_text_to_labels(opts, self._owner())
        self._post_process = make_post_processing(opts.orth_post_process, owner="%s: orth_post_process" % self._owner())
        self._lines = CorpusLines(opts, self._owner())
        labels = self._to_labels.labels
        spec = DataSpec(dim=len(labels), ndim=1, dtype=self._dtype(len(labels)), labels=tuple(labels))
        self.data_specs = {"delayed": spec} if opts.add_delayed_seq_data else {}
        self.data_specs["data"] = spec
        for number in range(opts.add_random_phone_seqs):
            self.data_specs["random%d" % number] = DataSpec(dim=spec.dim, ndim=1, dtype=spec.dtype)

    def _dtype(self, num_labels: int) -> str:
        smallest = next(name for limit, name in _INT_TYPES if num_labels <= limit)
        given = self.opts.dtype
        if given is None:
            return smallest
        try:
            dtype = np.dtype(given)
        except TypeError:
            raise TextError("%s: dtype %r is not known" % (self._owner(), given)) from None
        if dtype.kind not in "iu" or np.iinfo(dtype).max < num_labels - 1:
            raise TextError("%s: dtype %r can't hold %d labels; use %r" % (self._owner(), given, num_labels, smallest))
        return dtype.name

    @property
    def target_list(self) -> list[str]:
        """Return the only key that is predicted: "data" itself."""
        return ["data"]

    @property
    def num_seqs(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    @property
    def leaves_out(self) -> str:
        """Return the option that lets an epoch lack sequences of its order; empty: none."""
        return super().leaves_out or ("" if self.opts.error_on_invalid_seq else "error_on_invalid_seq=False")

    def tag(self, index: int) -> str:
        """Return the tag of ``seq_list_file``, or that of the number of the line."""
        return self._lines.tag(index)

    def file_of(self, index: int) -> str:
        """Return the corpus file."""
        return self._lines.file(index)

    def seq_lengths(self) -> NDArray[Any]:
        """Return the bytes of each line, [num_seqs]."""
        return self._lines.num_bytes()

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return corpus indices of sequences given by tag; DataError for an unknown one."""
        if self.opts.seq_list_file:
            return super().indices_of_tags(tags)
        return self._lines.indices_of_tags(tags)

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch by position, to be closed.

        Where sequences are random or may be invalid they are read in order. Sequences that were asked for by tag are
        never left out.
        """
        skip = not self.opts.error_on_invalid_seq and chosen.seq_list is None
        if not skip and (chosen.by_itself or not self._to_labels.uses_rng):
            return super().open_epoch(epoch, keys, chosen)
        order, nth = self.chosen_occurrences(epoch, chosen)
        logged = self.opts.log_skipped_seqs
        by_itself = bool(chosen.by_itself)
        return InOrderEpoch(self, epoch, order, keys, nth, by_itself=by_itself, skip_invalid=skip, max_logged=logged)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read a line; its random numbers depend on epoch and line."""
        return self.read_next(index, epoch, keys, None)

    @property
    def redraws(self) -> bool:
        """Return whether the labels are random."""
        return self._to_labels.uses_seed or self._to_labels.uses_rng

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a line with other random numbers than before."""
        return self.read_next(index, epoch, keys, None, nth)

    def read_next(
        self, index: int, epoch: int, keys: Sequence[str], rng: Optional[random.Random], nth: int = 0
    ) -> dict[str, NDArray[Any]]:
        """Read a line.

        :param rng: random numbers of the epoch; None: those of this line
        :param nth: number of its earlier occurrences in the epoch
        :raises DataError: naming the line
        """
        text = self._post_process(self._lines.text(index).strip())
        try:
            seed = (self.epoch_seed(epoch) % 2**32, index, *([nth] if nth else []))
            if rng is None and self._to_labels.uses_rng:
                rng = random.Random(" ".join(map(str, seed)))
            labels = self._to_labels.labels_of_text(text, rng, seed)
        except DataError as exc:
            raise InvalidSequence("%s: %r: %s" % (self._lines.place(index), _shortened(text), exc)) from None
        data = {"data": labels}
        if self.opts.add_delayed_seq_data:
            data["delayed"] = [self._start_label, *labels[:-1]] if labels else []
        for number in range(self.opts.add_random_phone_seqs):
            assert isinstance(self._to_labels, PhoneText) and rng is not None
            data["random%d" % number] = self._to_labels.phones.random_labels(len(labels), rng)
        return {key: np.asarray(data[key], self.data_specs[key].dtype) for key in keys}

    @functools.cached_property
    def _start_label(self) -> int:
        symbol = self.opts.delayed_seq_data_start_symbol
        index = self._to_labels.index(symbol)
        if index is None:
            raise TextDataError("delayed_seq_data_start_symbol %r is not among the labels" % symbol)
        return index


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
