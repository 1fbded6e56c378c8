"""The order in which an epoch reads the sequences of a corpus: pure functions on indices, lengths and seeds.

Random orders come from ``numpy.random.RandomState(seed)`` (MT19937, legacy functions), so they are the same everywhere.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, did_you_mean

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
    kind, *suffixes = str(text).split(":")
    if kind not in _ORDERS:
        raise ConfigError("unknown seq_ordering %r. %s" % (text, did_you_mean(kind, _ORDERS, max_listed=20)))
    try:
        return _SUFFIXES[_ORDERS[kind].suffixes](kind, suffixes)
    except ValueError:
        raise ConfigError("seq_ordering %r: %s has the form %s" % (text, kind, _ORDERS[kind].form)) from None


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
    return _ORDERS[ordering.kind].function(ordering, num_seqs, lengths, np.random.RandomState(seed))


def occurrences(order: NDArray[Any]) -> NDArray[Any]:
    """Return how many times each entry of an order has occurred before: array [sequences]."""
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


def _default(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    return np.arange(num_seqs)


def _every_n(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    count = ordering.count or 1
    rows = num_seqs // count
    return np.arange(rows * count).reshape(count, rows).T.reshape(-1)


def _reverse(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    return np.arange(num_seqs)[::-1]


def _sorted(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    return np.argsort(lengths(), kind="stable")


def _sorted_reverse(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    return np.argsort(-lengths(), kind="stable")


def _random(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    return rng.permutation(num_seqs)


def _random_sample(ordering: Ordering, num_seqs: int, lengths: Lengths, rng: np.random.RandomState) -> NDArray[Any]:
    return rng.randint(0, num_seqs, size=num_seqs)


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


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _no_suffix(kind: str, suffixes: list[str]) -> Ordering:
    if suffixes:
        raise ValueError(suffixes)
    return Ordering(kind)


def _count_suffix(kind: str, suffixes: list[str]) -> Ordering:
    (count,) = suffixes
    return Ordering(kind, count=_positive(count))


def _nth_suffix(kind: str, suffixes: list[str]) -> Ordering:
    if len(suffixes) > 1:
        raise ValueError(suffixes)
    return Ordering(kind, nth=_positive(suffixes[0]) if suffixes else 1)


def _bins_suffix(kind: str, suffixes: list[str]) -> Ordering:
    if len(suffixes) > 2:
        raise ValueError(suffixes)
    bins = suffixes[0] if suffixes else ""
    nth = _positive(suffixes[1]) if len(suffixes) == 2 else 1
    if bins.startswith("."):
        return Ordering(kind, seqs_per_bin=_positive(bins[1:]), nth=nth)
    return Ordering(kind, count=_positive(bins) if bins else None, nth=nth)


_SUFFIXES: dict[str, Callable[[str, list[str]], Ordering]] = {
    "": _no_suffix,
    ":<n>": _count_suffix,
    "[:<n>]": _nth_suffix,
    "[:<bins>|:.<seqs per bin>][:<n>]": _bins_suffix,
}


@dataclasses.dataclass(frozen=True)
class _Order:
    function: Callable[[Ordering, int, Lengths, np.random.RandomState], NDArray[Any]]
    suffixes: str
    form: str


def _table() -> dict[str, _Order]:
    bins = "[:<bins>|:.<seqs per bin>][:<n>]"
    entries = [
        ("default", _default, ""),
        ("default_every_n", _every_n, ":<n>"),
        ("reverse", _reverse, ""),
        ("sorted", _sorted, ""),
        ("sorted_reverse", _sorted_reverse, ""),
        ("random", _random, "[:<n>]"),
        ("random_sample", _random_sample, "[:<n>]"),
        ("laplace", _laplace, bins),
        ("sort_bin_shuffle", _sort_bin_shuffle, bins),
        ("sort_bin_shuffle_x2", _sort_bin_shuffle, bins),
    ]
    return {name: _Order(function, suffixes, name + suffixes) for name, function, suffixes in entries}


_ORDERS: dict[str, _Order] = _table()
_BY_LENGTH = frozenset(("sorted", "sorted_reverse", "laplace", "sort_bin_shuffle", "sort_bin_shuffle_x2"))
