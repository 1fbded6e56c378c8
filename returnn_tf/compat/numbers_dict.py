"""``from returnn.util.basic import NumbersDict``: arithmetic on dicts of numbers by data key."""

from __future__ import annotations

import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Callable, Optional, Union

_Operand = Union["NumbersDict", Mapping[str, Any], float]


class NumbersDict(Mapping[str, Any]):
    """Numbers by data key, and one for all other keys. Operators work on each number.

    :param auto_convert: a dict, another one of these, or the number for all keys
    :param numbers_dict: the numbers by key
    :param broadcast_value: the number for all other keys; None: there are no others
    """

    def __init__(
        self,
        auto_convert: Optional[_Operand] = None,
        numbers_dict: Optional[Mapping[str, Any]] = None,
        broadcast_value: Optional[float] = None,
    ) -> None:
        if isinstance(auto_convert, NumbersDict):
            numbers_dict, broadcast_value = auto_convert.dict, auto_convert.value
        elif isinstance(auto_convert, Mapping):
            numbers_dict = auto_convert
        elif auto_convert is not None:
            broadcast_value = auto_convert
        self.dict: dict[str, Any] = dict(numbers_dict or {})
        self.value: Any = broadcast_value

    @classmethod
    def constant_like(cls, const_number: Any, numbers_dict: NumbersDict) -> NumbersDict:
        """Return the same number for all keys of another one."""
        value = None if numbers_dict.value is None else const_number
        return cls(numbers_dict=dict.fromkeys(numbers_dict.dict, const_number), broadcast_value=value)

    @classmethod
    def max(cls, items: Iterable[_Operand]) -> NumbersDict:
        """Return the largest number of each key."""
        return cls._folded(max, items)

    @classmethod
    def min(cls, items: Iterable[_Operand]) -> NumbersDict:
        """Return the smallest number of each key."""
        return cls._folded(min, items)

    @classmethod
    def _folded(cls, func: Callable[[Any, Any], Any], items: Iterable[_Operand]) -> NumbersDict:
        first, *rest = [cls(item) for item in items]
        for item in rest:
            first = first._combined(func, item)
        return first

    # --- a dict ---

    def __getitem__(self, key: str) -> Any:
        if self.value is not None:
            return self.dict.get(key, self.value)
        return self.dict[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.dict[key] = value

    def __delitem__(self, key: str) -> None:
        del self.dict[key]

    def __contains__(self, key: object) -> bool:
        return key in self.dict

    def __iter__(self) -> Iterator[str]:
        return iter(self.dict)

    def __len__(self) -> int:
        return len(self.dict)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the number of a key."""
        return self.dict.get(key, self.value if self.value is not None else default)

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return self.dict.keys()

    def values(self) -> ValuesView[Any]:
        """Return the numbers of the keys."""
        return self.dict.values()

    def items(self) -> ItemsView[str, Any]:
        """Return the keys with their numbers."""
        return self.dict.items()

    def copy(self) -> NumbersDict:
        """Return a copy."""
        return NumbersDict(self)

    def has_values(self) -> bool:
        """Return whether there is any number."""
        return bool(self.dict) or self.value is not None

    def max_value(self) -> Any:
        """Return the largest number."""
        return max(self._all())

    def _all(self) -> list[Any]:
        return [*self.dict.values(), *([] if self.value is None else [self.value])]

    # --- arithmetic ---

    def _combined(self, func: Callable[[Any, Any], Any], other: _Operand, needs_both: bool = False) -> NumbersDict:
        """Combine the numbers of each key; where one is missing, the result is the other one, or missing, too."""
        other = NumbersDict(other)
        keys = [*self.dict, *(key for key in other.dict if key not in self.dict)]

        def apply(a: Any, b: Any) -> Any:
            if needs_both and (a is None or b is None):
                return None
            return b if a is None else a if b is None else func(a, b)

        numbers = {key: apply(self.get(key), other.get(key)) for key in keys}
        return NumbersDict(numbers_dict=numbers, broadcast_value=apply(self.value, other.value))

    def __add__(self, other: _Operand) -> NumbersDict:
        return self._combined(operator.add, other)

    __radd__ = __add__

    def __sub__(self, other: _Operand) -> NumbersDict:
        return self._combined(operator.sub, other)

    def __rsub__(self, other: _Operand) -> NumbersDict:
        return NumbersDict(other) - self

    def __mul__(self, other: _Operand) -> NumbersDict:
        return self._combined(operator.mul, other, needs_both=True)

    __rmul__ = __mul__

    def __truediv__(self, other: _Operand) -> NumbersDict:
        return self._combined(operator.truediv, other, needs_both=True)

    def __floordiv__(self, other: _Operand) -> NumbersDict:
        return self._combined(operator.floordiv, other, needs_both=True)

    def __neg__(self) -> NumbersDict:
        return NumbersDict.constant_like(0, self) - self

    def __bool__(self) -> bool:
        return any(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (NumbersDict, Mapping, int, float)):
            return NotImplemented
        other = NumbersDict(other)
        keys = {*self.dict, *other.dict}
        return self.value == other.value and all(self.get(key) == other.get(key) for key in keys)

    def __hash__(self) -> int:
        return id(self)

    def any_compare(self, other: _Operand, cmp: Callable[[Any, Any], bool]) -> bool:
        """Return whether the comparison is true for any key of both."""
        other = NumbersDict(other)
        return any(cmp(self[key], other[key]) for key in {*self.dict, *other.dict} if None not in
                   (self.get(key), other.get(key)))  # fmt: skip

    def __repr__(self) -> str:
        more = "" if self.value is None else ", broadcast_value=%r" % (self.value,)
        return "NumbersDict(%r%s)" % (self.dict, more)
