"""The option ``epoch_wise_filter``: only the shortest sequences in the epochs of a range, for a curriculum."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetError, did_you_mean
from returnn_tf.datasets.core.per_key import is_int

_FORM = "{(first epoch, last epoch): {'max_mean_len': frames}}, last: None or -1 = no end"


@dataclasses.dataclass(frozen=True)
class EpochFilter:
    """What applies in which epochs.

    >>> epoch_filter = EpochFilter.parse({(1, 5): {"max_mean_len": 50}, (6, None): {}}, owner="dataset 'train'")
    >>> epoch_filter.at(5)
    [{'max_mean_len': 50}]
    """

    ranges: tuple[tuple[int, Optional[int], Mapping[str, Any]], ...]

    @classmethod
    def parse(cls, value: Any, *, owner: str, options: Collection[str] = ("max_mean_len",)) -> EpochFilter:
        """Parse the option; None or {}: no filter.

        :param owner: prefix of errors
        :param options: the options that an entry may have
        :raises ConfigError: for a range of another form, an unknown option, or one with a value of another type
        """
        where = "%s: option 'epoch_wise_filter'" % owner
        if value is not None and not isinstance(value, Mapping):
            raise DatasetError("%s is %r, but must have the form %s" % (where, value, _FORM))
        _check_starts(value or {}, where)
        entries = [(*_range(key, where), _entry(key, entry, where, options)) for key, entry in (value or {}).items()]
        entries.sort(key=lambda entry: (entry[0], -1 if entry[1] is None else entry[1]))
        return cls(tuple(entries))

    def at(self, epoch: int) -> list[Mapping[str, Any]]:
        """Return the entries for this epoch (from 1), in the order in which they apply."""
        return [entry for first, last, entry in self.ranges if first <= epoch and (last is None or epoch <= last)]


def limit_mean_length(
    order: NDArray[Any], lengths: NDArray[Any], limit: Optional[float], *, new_filter: bool = True
) -> NDArray[Any]:
    """Return the shortest sequences of an order, as many as a mean length of about ``limit`` allows, at least one.

    The new filter includes the sequence with which the mean exceeds the limit, and keeps the order. The old one
    halves the number of sequences until the mean is within the limit, and sorts them by length.

    :param order: corpus indices [n] of an epoch
    :param lengths: [n], of the sequences in this order
    :param limit: 0 or None: no limit
    """
    if not limit or not len(order):
        return order
    by_length = np.lexsort((order, lengths))
    means = np.cumsum(lengths[by_length], dtype=np.float64) / np.arange(1, len(order) + 1)
    count = _bisected(means, limit, exactly=new_filter)
    chosen = np.sort(by_length[:count]) if new_filter else by_length[:count]
    kept: NDArray[Any] = order[chosen]
    return kept


def _bisected(means: NDArray[Any], limit: float, *, exactly: bool) -> int:
    """Return the first number met by bisection whose mean is the limit, or the least that exceeds it.

    :param means: [n], of the first 1, 2, ... sequences
    :param exactly: False: a mean below the limit will do, too
    """
    low, high = 1, len(means) + 1
    while low < high:
        middle = (low + high) // 2
        mean = means[middle - 1]
        if mean > limit:
            high = middle
        elif exactly and mean < limit:
            low = middle + 1
        else:
            return middle
    return low


def _check_starts(ranges: Mapping[Any, Any], where: str) -> None:
    """Refuse None beside numbers: such ranges have no order in which their entries could apply."""
    starts = {key[0] is None: key for key in ranges if isinstance(key, tuple) and key}
    if len(starts) == 2:
        raise DatasetError(
            "%s: the ranges %r and %r begin with None and with a number; write 1 for the first epoch"
            % (where, starts[True], starts[False])
        )


def _range(key: Any, where: str) -> tuple[int, Optional[int]]:
    if not isinstance(key, tuple) or len(key) != 2 or not all(end is None or is_int(end) for end in key):
        raise DatasetError("%s: %r is no range of epochs; the form is %s" % (where, key, _FORM))
    first = 1 if key[0] is None else int(key[0])
    last = None if key[1] is None or key[1] == -1 else int(key[1])
    if last is not None and last < first:
        raise DatasetError("%s: the range %r ends before it begins" % (where, key))
    return first, last


def _entry(key: Any, entry: Any, where: str, options: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise DatasetError("%s: %r: %r must be a dict; the form is %s" % (where, key, entry, _FORM))
    for name in entry:
        if name not in options:
            raise DatasetError("%s: %r: unknown option %r. %s" % (where, key, name, did_you_mean(name, options)))
    limit = entry.get("max_mean_len")
    if isinstance(limit, bool) or not isinstance(limit, (int, float, type(None))) or not (limit or 0) >= 0:
        raise DatasetError("%s: %r: max_mean_len is %r, but must be a number >= 0" % (where, key, limit))
    if not isinstance(entry.get("use_new_filter", False), (bool, int, type(None))):
        raise DatasetError("%s: %r: use_new_filter is %r, not True or False" % (where, key, entry["use_new_filter"]))
    parts = entry.get("subdirs")
    parts = [parts] if isinstance(parts, str) else [] if parts is None else parts
    if not isinstance(parts, (list, tuple, set)) or not all(isinstance(part, str) for part in parts):
        raise DatasetError("%s: %r: subdirs is %r, but must be a list of names" % (where, key, parts))
    return dict(entry)
