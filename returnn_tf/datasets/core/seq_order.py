"""The order in which an epoch reads the sequences of a corpus: its options, and the functions that make it.

Random orders come from ``numpy.random.RandomState(seed)`` (MT19937, legacy functions), so they are the same everywhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import between
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.base_options import SEED_OFFSETS, BaseOptions
from returnn_tf.datasets.core.tags import warn_of_unknown
from returnn_tf.logging.log import log

#: Environment variable for the option `random_seed_offset`.
SEED_OFFSET_VARIABLE = "RETURNN_RANDOM_SEED_OFFSET"
_TAGS_PER_BLOCK = 4096

Lengths = Callable[[], NDArray[Any]]  # computes the lengths [num_seqs] of all sequences, only if an order needs them


@dataclasses.dataclass(frozen=True)
class Ordering:
    """A parsed ``seq_ordering``.

    :param kind: name without suffixes
    :param count: number of bins, or n of ``default_every_n``
    :param seqs_per_bin: alternative to ``count``, from ".k"
    :param nth: number of full epochs for which the random order stays the same
    """

    kind: str
    count: Optional[int] = None
    seqs_per_bin: Optional[int] = None
    nth: int = 1

    @property
    def needs_lengths(self) -> bool:
        """Return whether the order depends on the lengths of the sequences."""
        return self.kind in _BY_LENGTH

    def num_bins(self, num_seqs: int) -> int:
        """Return the number of bins for ``num_seqs`` sequences."""
        if self.seqs_per_bin is not None:
            return max(num_seqs // self.seqs_per_bin, 2)
        return 2 if self.count is None else self.count


def parse_ordering(text: str) -> Ordering:
    """Parse e.g. "laplace:.100:2"; ConfigError with the nearest known order for an unknown one."""
    kind, colon, rest = str(text).partition(":")
    if kind not in _ORDERS:
        raise DatasetError("unknown seq_ordering %r. %s" % (text, did_you_mean(kind, _ORDERS, max_listed=20)))
    form = _ORDERS[kind][1]
    match = re.fullmatch(form, colon + rest)
    numbers = {name: int(digits) for name, digits in match.groupdict().items() if digits} if match else {}
    if match is None or 0 in numbers.values():
        raise DatasetError("seq_ordering %r: %s has the form %s%s" % (text, kind, kind, _FORMS[form]))
    return Ordering(kind, **numbers)


def epoch_seed(
    epoch: int, *, partition_epoch: int = 1, nth: int = 1, fixed: Optional[int] = None, offset: int = 0
) -> int:
    """Return the random seed of an epoch (counts from 1): the same for all parts of one pass over the corpus."""
    if fixed is not None:
        return fixed
    full_epoch = (max(epoch, 1) - 1) // partition_epoch + 1
    if nth > 1:
        full_epoch = (full_epoch - 1) // nth + 1
    return full_epoch + offset


def order_sequences(ordering: Ordering, num_seqs: int, lengths: Lengths, seed: int) -> NDArray[Any]:
    """Return corpus indices (int64) in the order of one full pass.

    :param lengths: called at most once
    """
    return _ORDERS[ordering.kind][0](ordering, num_seqs, lengths, np.random.RandomState(seed))


def narrow(order: NDArray[Any]) -> NDArray[Any]:
    """Return an order with 4 bytes for each sequence if that is enough: a corpus of millions needs much memory."""
    return order.astype(np.int32, copy=False) if order.max(initial=0) < 1 << 31 else order


def occurrences(order: NDArray[Any]) -> NDArray[Any]:
    """Return the number of earlier occurrences of each entry of an order: array [sequences]."""
    by_index = np.argsort(order, kind="stable")
    ranks = np.arange(len(order))
    is_first = np.diff(order[by_index], prepend=-1) != 0
    counts = np.empty(len(order), np.int64)
    counts[by_index] = ranks - np.maximum.accumulate(np.where(is_first, ranks, 0))
    return counts


def bin_borders(num_seqs: int, num_bins: int) -> list[int]:
    """Return ``num_bins + 1`` positions i*N//B."""
    return [i * num_seqs // num_bins for i in range(num_bins + 1)]


def partition(order: NDArray[Any], *, num_parts: int, part: int) -> NDArray[Any]:
    """Return one of ``num_parts`` consecutive pieces; the first (N mod parts) ones are longer by one."""
    size, longer = divmod(len(order), num_parts)
    start = part * size + min(part, longer)
    return order[start : start + size + (1 if part < longer else 0)]


def _every_n(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    count = ordering.count or 1
    rows = num_seqs // count
    return np.arange(rows * count).reshape(count, rows).T.reshape(-1)


def _laplace(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    """Sort bins of a permutation in alternately ascending and descending order.

    Neighbours then have similar lengths.
    """
    order = rng.permutation(num_seqs)
    sizes = lengths()
    borders = bin_borders(num_seqs, ordering.num_bins(num_seqs))
    for number, (start, end) in enumerate(zip(borders, borders[1:])):
        part = order[start:end]
        sign = -1 if number % 2 else 1
        order[start:end] = part[np.argsort(sign * sizes[part], kind="stable")]
    return order


def _sort_bin_shuffle(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    """Shuffle bins of similar lengths; ``_x2``: also within the bins."""
    order = rng.permutation(num_seqs)
    order = order[np.argsort(lengths()[order], kind="stable")]
    num_bins = ordering.num_bins(num_seqs)
    borders = bin_borders(num_seqs, num_bins)
    parts = []
    for number in rng.permutation(num_bins):
        part = order[borders[number] : borders[number + 1]].copy()
        if ordering.kind.endswith("_x2"):
            rng.shuffle(part)
        parts.append(part)
    return np.concatenate(parts)


_N, _OPTIONAL_N = r":(?P<count>\d+)", r"(?::(?P<nth>\d+))?"
_BINS = r"(?::(?:\.(?P<seqs_per_bin>\d+)|(?P<count>\d*)))?" + _OPTIONAL_N
#: What follows the name of an order -> how it is displayed.
_FORMS = {"": "", _N: ":<n>", _OPTIONAL_N: "[:<n>]", _BINS: "[:<bins>|:.<seqs per bin>][:<n>]"}

#: Name -> (function of the ordering, the number of sequences, their lengths and random numbers; form of what follows).
_ORDERS: dict[str, tuple[Callable[[Ordering, int, Lengths, np.random.RandomState], NDArray[Any]], str]] = {
    "default": (lambda ordering, num_seqs, lengths, rng: np.arange(num_seqs), ""),
    "default_every_n": (_every_n, _N),
    "reverse": (lambda ordering, num_seqs, lengths, rng: np.arange(num_seqs)[::-1], ""),
    "sorted": (lambda ordering, num_seqs, lengths, rng: np.argsort(lengths(), kind="stable"), ""),
    "sorted_reverse": (lambda ordering, num_seqs, lengths, rng: np.argsort(-lengths(), kind="stable"), ""),
    "random": (lambda ordering, num_seqs, lengths, rng: rng.permutation(num_seqs), _OPTIONAL_N),
    "random_sample": (lambda ordering, num_seqs, lengths, rng: rng.randint(0, num_seqs, size=num_seqs), _OPTIONAL_N),
    "laplace": (_laplace, _BINS),
    "sort_bin_shuffle": (_sort_bin_shuffle, _BINS),
    "sort_bin_shuffle_x2": (_sort_bin_shuffle, _BINS),
}
_BY_LENGTH = frozenset(("sorted", "sorted_reverse", "laplace", "sort_bin_shuffle", "sort_bin_shuffle_x2"))


@dataclasses.dataclass(frozen=True)
class CorpusFacts:
    """The facts about a corpus that determine the order of its sequences.

    :param num_seqs: None: endless
    :param seq_lengths: returns the lengths [num_seqs], or None if they are not known without reading
    :param tags: returns the tags of sequences by index
    """

    num_seqs: Optional[int]
    seq_lengths: Callable[[], Optional[NDArray[Any]]]
    tags: Callable[[Sequence[int]], list[str]]

    def walk_tags(self, order: Sequence[int]) -> Iterator[str]:
        """Yield the tags of sequences by index."""
        blocks = (order[start : start + _TAGS_PER_BLOCK] for start in range(0, len(order), _TAGS_PER_BLOCK))
        return itertools.chain.from_iterable(map(self.tags, blocks))


class EpochOrder:
    """The options of a dataset on the order of its sequences, applied to an epoch.

    :param opts: of the dataset
    :param owner: prefix of errors
    :param parse: parses the option ``seq_ordering``
    :raises ConfigError: the options contradict each other
    """

    def __init__(self, opts: BaseOptions, owner: str, parse: Callable[[Any], Ordering]):
        self._opts = opts
        self._owner = owner
        self._parse = parse
        self._lengths: Optional[NDArray[Any]] = None
        self._warned_empty = False
        self._listed: Optional[NDArray[np.bool_]] = None  # by seq_list_filter_file, for each sequence of the corpus
        self._num_listed = 0
        self._tag_ids: Optional[NDArray[np.int64]] = None  # of each sequence of the corpus, for unique_seq_tags
        if opts.repeat_epoch > 1 and opts.partition_epoch > 1:
            raise DatasetError(
                "%s: partition_epoch=%d and repeat_epoch=%d contradict each other; use one of them"
                % (owner, opts.partition_epoch, opts.repeat_epoch)
            )
        if not 0 <= opts._shard_index < opts._num_shards:
            raise DatasetError(
                "%s: _shard_index is %d, but must be at least 0 and below _num_shards=%d"
                % (owner, opts._shard_index, opts._num_shards)
            )
        #: the order of all epochs; None: it is a function of the epoch
        self.fixed = None if callable(opts.seq_ordering) else self._parsed(opts.seq_ordering)

    @property
    def ignores_lengths(self) -> bool:
        """Return whether no epoch is ordered by lengths."""
        return self.fixed is not None and not self.fixed.needs_lengths

    def at(self, epoch: int) -> Ordering:
        """Return the order of an epoch as the option has it."""
        if self.fixed is not None:
            return self.fixed
        given = result_of_config("%s: seq_ordering" % self._owner, self._opts.seq_ordering, epoch=epoch)
        return self._parsed(given)

    def _parsed(self, text: Any) -> Ordering:
        try:
            return self._parse(text)
        except ConfigError as exc:
            raise DatasetError("%s: %s" % (self._owner, exc)) from None

    @property
    def seed_offset(self) -> int:
        """Return the offset of the seed of each epoch.

        The option, else environment variable RETURNN_RANDOM_SEED_OFFSET, else 0.
        """
        if self._opts.random_seed_offset is not None:
            return int(self._opts.random_seed_offset)
        text = os.environ.get(SEED_OFFSET_VARIABLE, "0")
        try:
            offset = int(text)
        except ValueError:
            raise DatasetError("environment variable %s is %r, not an integer" % (SEED_OFFSET_VARIABLE, text)) from None
        fault = between(*SEED_OFFSETS)(offset)
        if fault:
            raise DatasetError("environment variable %s %s, got %d" % (SEED_OFFSET_VARIABLE, fault, offset))
        return offset

    def seed(self, epoch: int, *, nth: int = 1) -> int:
        """Return the random seed of an epoch."""
        opts = self._opts
        return epoch_seed(
            epoch,
            partition_epoch=opts.partition_epoch,
            nth=nth,
            fixed=opts.fixed_random_seed,
            offset=self.seed_offset,
        )

    def order(self, epoch: int, ordering: Ordering, corpus: CorpusFacts) -> Optional[NDArray[Any]]:
        """Return corpus indices (int64) in the order in which an epoch reads them; None: endless, in corpus order.

        :param ordering: of the epoch
        :raises DataError: the corpus is empty or the filter leaves nothing
        """
        if corpus.num_seqs == 0:
            raise DatasetDataError("%s is empty: it has no sequences" % self._owner)
        if ordering.kind in ("sorted", "sorted_reverse") and self._known_lengths(corpus) is None:
            ordering = Ordering("default")
        if corpus.num_seqs is None:
            self._check_endless(ordering)
            return None
        seed = self.seed(epoch, nth=ordering.nth)
        full = order_sequences(ordering, corpus.num_seqs, lambda: self.lengths(corpus), seed)
        return self.part(full, epoch, corpus)

    def part(self, order: NDArray[Any], epoch: int, corpus: CorpusFacts) -> NDArray[Any]:
        """Return the part of a full order for an epoch: unique tags, partition and shard, repetition, filter."""
        opts = self._opts
        if opts.unique_seq_tags:
            if self._tag_ids is None:
                self._tag_ids = _ids_of_tags(corpus)
            order = order[np.sort(np.unique(self._tag_ids[order], return_index=True)[1])]
        parts, shards = opts.partition_epoch, opts._num_shards
        if parts * shards > 1:
            part = (max(epoch, 1) - 1) % parts * shards + opts._shard_index
            found = partition(order, num_parts=parts * shards, part=part)
            if not len(found) and not self._warned_empty:
                self._warned_empty = True
                shared = ", _num_shards=%d" % shards if shards > 1 else ""
                log.warn(
                    "%s: epoch %d is empty: %d sequences are divided into %d parts (partition_epoch=%d%s)"
                    % (self._owner, epoch, len(order), parts * shards, parts, shared)
                )
            order = found
        if opts.repeat_epoch > 1:
            order = np.tile(order, opts.repeat_epoch)
        return np.asarray(self.filtered(order, epoch, corpus), np.int64)

    def filtered(self, order: NDArray[Any], epoch: int, corpus: CorpusFacts) -> NDArray[Any]:
        """Return the sequences of an order which ``seq_list_filter_file`` names, all if there is no such file.

        The file is read once.

        :raises DataError: it names none of them
        """
        path = self._opts.seq_list_filter_file
        if not path:
            return order
        if self._listed is None:
            self._listed = self._find_listed(path, corpus)
        kept = order[self._listed[order]]
        if not len(kept):
            raise DatasetDataError(
                "%s: epoch %d is empty: none of its sequences is in seq_list_filter_file %r (%d tags). Are the tags of "
                "another corpus, or is partition_epoch=%d too large?"
                % (self._owner, epoch, path, self._num_listed, self._opts.partition_epoch)
            )
        return np.asarray(kept, np.int64)

    def _find_listed(self, path: str, corpus: CorpusFacts) -> NDArray[np.bool_]:
        with safe_files.wanted_by("%s: option 'seq_list_filter_file'" % self._owner):
            tags = set(safe_files.read_seq_tags(path))
        count = corpus.num_seqs or 0
        listed = np.fromiter(map(tags.__contains__, corpus.walk_tags(range(count))), np.bool_, count)
        warn_of_unknown(
            self._owner, "seq_list_filter_file", path, tags, corpus.walk_tags(np.flatnonzero(listed).tolist())
        )
        self._num_listed = len(tags)
        return listed

    def lengths(self, corpus: CorpusFacts) -> NDArray[Any]:
        """Return the lengths [num_seqs] by which orders sort.

        :raises ConfigError: they are not known
        """
        lengths = self._known_lengths(corpus)
        if lengths is None:
            raise DatasetError(
                "%s: seq_ordering %r needs the lengths of the sequences, which are not known before they are read. "
                "Use 'default' or 'random', or give seq_order_seq_lens_file" % (self._owner, self._opts.seq_ordering)
            )
        return lengths

    def _check_endless(self, ordering: Ordering) -> None:
        opts = self._opts
        cuts = max(opts.partition_epoch, opts.repeat_epoch, opts._num_shards) > 1
        if ordering.kind != "default" or cuts or opts.unique_seq_tags or opts.seq_list_filter_file:
            raise DatasetError(
                "%s is endless, so it has the order 'default' only, and no parts; give it num_seqs" % self._owner
            )

    def _known_lengths(self, corpus: CorpusFacts) -> Optional[NDArray[Any]]:
        if self._lengths is None:
            path = self._opts.seq_order_seq_lens_file
            found = self._lengths_of_file(path, corpus) if path else corpus.seq_lengths()
            self._lengths = None if found is None else np.asarray(found)
        return self._lengths

    def _lengths_of_file(self, path: str, corpus: CorpusFacts) -> NDArray[Any]:
        with safe_files.wanted_by("%s: option 'seq_order_seq_lens_file'" % self._owner):
            table = safe_files.read_seq_lens(path)
        lengths = []
        for tag in corpus.walk_tags(range(corpus.num_seqs or 0)):
            if tag not in table:
                raise DatasetDataError(
                    "%s: seq_order_seq_lens_file %r lacks the sequence %r" % (self._owner, path, tag)
                )
            lengths.append(table[tag])
        return np.asarray(lengths)


def _ids_of_tags(corpus: CorpusFacts) -> NDArray[np.int64]:
    """Return a number for each sequence [num_seqs], the same for those of the same tag."""
    count = corpus.num_seqs or 0
    hashes = np.fromiter(map(hash, corpus.walk_tags(range(count))), np.int64, count)
    _, ids, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    doubtful = np.flatnonzero(counts[ids] > 1).tolist()  # their tags may be different ones
    first: dict[str, int] = {}
    for index, tag in zip(doubtful, corpus.walk_tags(doubtful)):
        ids[index] = count + first.setdefault(tag, index)
    return np.asarray(ids, np.int64)
