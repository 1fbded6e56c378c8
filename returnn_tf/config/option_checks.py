"""Checks of the numbers that options take: functions of a value that return what is wrong with it, or None."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional


def at_least(least: float) -> Callable[[Any], Optional[str]]:
    """Return a check that a number is at least ``least``; None passes."""
    return lambda value: None if value is None or value >= least else "must be at least %s" % least


def between(least: float, most: float) -> Callable[[Any], Optional[str]]:
    """Return a check that a number is between ``least`` and ``most``, inclusive; None passes."""
    return lambda value: None if value is None or least <= value <= most else "must be from %s to %s" % (least, most)


def above(limit: float) -> Callable[[Any], Optional[str]]:
    """Return a check that a number is above ``limit``; None passes."""
    return lambda value: None if value is None or value > limit else "must be above %s" % limit


def finite(value: Any) -> Optional[str]:
    """Check that a number is neither infinite nor NaN; None passes."""
    return None if value is None or math.isfinite(value) else "must be finite"


def file_name(value: Any) -> Optional[str]:
    """Check that a file can have this name, and that TensorFlow takes it; None passes."""
    if value is not None and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        return "must be a name that can be written in UTF-8, without NUL"
    return None


def none_below(least: int) -> Callable[[Any], Optional[str]]:
    """Return a check that a number, or each number of a dict, is at least ``least``; None passes, also in the dict."""
    check = at_least(least)
    return lambda value: next(filter(None, map(check, value.values() if isinstance(value, Mapping) else [value])), None)


def probability(value: Any) -> Optional[str]:
    """Check that a number is between 0 and 1, inclusive; None passes."""
    return between(0, 1)(value)


def dropout_rate(value: Any) -> Optional[str]:
    """Check that a number is at least 0 and below 1, as the kept entries are divided by the rest; None passes."""
    return None if value is None or 0 <= value < 1 else "must be from 0 to below 1"


#: TensorFlow keeps shapes as int32.
MAX_AXIS_SIZE = 2**31 - 1


def axis_size(value: Any) -> Optional[str]:
    """Check that a number can be the size of an axis; None passes."""
    good = value is None or 1 <= value <= MAX_AXIS_SIZE
    return None if good else "must be from 1 to %d" % MAX_AXIS_SIZE


def axis_sizes(value: Optional[Iterable[Optional[int]]]) -> Optional[str]:
    """Check that numbers can be the sizes of axes; None passes, as the value and as an entry."""
    return next((message for message in map(axis_size, value or ()) if message), None)
