"""``from returnn.util.math import PiecewiseLinear``: functions of numbers, for schedules in configs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config.errors import CodeError

register_compat(__name__, "returnn.util.math")

__all__ = ["PiecewiseLinear", "ceil_div", "next_power_of_two"]

_Number = Union[int, float]


class PiecewiseLinear:
    """A function that is linear between given points, and constant before the first and after the last one.

    :param values: value by position; at least one
    :param kw_name: the keyword that gives the position when it is called; without it, the only argument
    :param ignore_other_kwargs: whether a call may have further keywords
    """

    def __init__(
        self, values: Mapping[_Number, _Number], *, kw_name: Optional[str] = None, ignore_other_kwargs: bool = False
    ) -> None:
        if not isinstance(values, Mapping) or not values:
            raise CodeError("PiecewiseLinear: expected a dict {position: value} with an entry, got %r." % (values,))
        self._points = sorted(values.items())
        self._kw_name = kw_name
        self._ignore_other_kwargs = ignore_other_kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the value at a position, a number or an array."""
        position = self._position(args, dict(kwargs))
        value = np.interp(position, [x for x, _ in self._points], [y for _, y in self._points])
        return value if np.ndim(position) else float(value)

    def _position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(args)
        if self._kw_name is not None and self._kw_name in kwargs:
            given.append(kwargs.pop(self._kw_name))
        if len(given) != 1 or (kwargs and not self._ignore_other_kwargs):
            name = "the keyword %r" % self._kw_name if self._kw_name is not None else "one argument"
            more = "" if self._ignore_other_kwargs else " and nothing else (else set ignore_other_kwargs=True)"
            shown = ", ".join([*map(repr, args), *("%s=%r" % item for item in sorted(kwargs.items()))])
            raise TypeError("%r: expected %s%s, got (%s)" % (self, name, more, shown))
        return given[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PiecewiseLinear) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((tuple(self._points), self._kw_name))

    def __repr__(self) -> str:
        options = ["{%s}" % ", ".join("%r: %r" % point for point in self._points)]
        options += ["kw_name=%r" % self._kw_name] * (self._kw_name is not None)
        options += ["ignore_other_kwargs=True"] * self._ignore_other_kwargs
        return "PiecewiseLinear(%s)" % ", ".join(options)


def ceil_div(a: int, b: int) -> int:
    """Return the quotient, rounded up."""
    return -(-a // b)


def next_power_of_two(number: _Number) -> int:
    """Return the smallest power of two that is not below a number; 1 for numbers up to 1."""
    return 1 << max(math.ceil(number) - 1, 0).bit_length()
