"""Options that can be read but not changed: dicts and lists of a plan."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Union


class ReadOnlyDict(dict[Any, Any]):
    """A dict that cannot be changed; a copy of it can.

    :param place: how a refusal names it
    """

    def __init__(self, items: Union[Mapping[Any, Any], Iterable[Any]] = (), place: str = "The dict") -> None:
        super().__init__(items)
        self.place = place

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(_REFUSAL % self.place)

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def copy(self) -> dict[Any, Any]:
        """Return a dict that can be changed."""
        return dict(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that cannot be changed; a copy of it can.

    :param place: how a refusal names it
    """

    def __init__(self, items: Iterable[Any] = (), place: str = "The list") -> None:
        super().__init__(items)
        self.place = place

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(_REFUSAL % self.place)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def copy(self) -> list[Any]:
        """Return a list that can be changed."""
        return list(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


_REFUSAL = "%s belongs to a plan and cannot be changed. Change the network of the config, and plan it again."


def read_only(value: Any, place: str) -> Any:
    """Return dicts and lists, also inside dicts, lists and tuples, as ones that cannot be changed.

    :param place: how refusals name the value
    """
    if type(value) is dict:
        return ReadOnlyDict({key: read_only(item, "%s[%r]" % (place, key)) for key, item in value.items()}, place)
    if type(value) is list:
        return ReadOnlyList([read_only(item, "%s[%d]" % (place, i)) for i, item in enumerate(value)], place)
    if type(value) is tuple:
        return tuple(read_only(item, "%s[%d]" % (place, i)) for i, item in enumerate(value))
    return value


def plain(value: Any) -> Any:
    """Return such dicts and lists as copies that can be changed, for code of the user."""
    if isinstance(value, ReadOnlyDict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, ReadOnlyList):
        return [plain(item) for item in value]
    return tuple(plain(item) for item in value) if type(value) is tuple else value
