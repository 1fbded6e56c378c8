"""Names and objects inside the values of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from returnn_tf.config.options import OptionInfo
from returnn_tf.config.read_only import ReadOnlyDict, ReadOnlyList


def referenced_names(info: OptionInfo, value: Any) -> Iterator[str]:
    """Yield the layer names inside an option value."""
    if isinstance(value, str):
        if value not in info.keywords:
            yield value
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from referenced_names(info, item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from referenced_names(info, item)


def map_strings(info: OptionInfo, value: Any, func: Callable[[str], Any]) -> Any:
    """Replace every layer name in an option value by ``func(name)``; dicts, lists and tuples keep their form."""
    if isinstance(value, str):
        return value if value in info.keywords else func(value)
    if isinstance(value, (list, tuple)):
        return _kind_of(value)(map_strings(info, item, func) for item in value)
    if isinstance(value, Mapping):
        return {key: map_strings(info, item, func) for key, item in value.items()}
    return value


def map_values(value: Any, of_type: type, func: Callable[[Any], Any]) -> Any:
    """Replace every object of a type inside lists, tuples, sets and dicts by ``func(object)``."""
    if isinstance(value, of_type):
        return func(value)
    if type(value) in (list, tuple, set, frozenset, ReadOnlyList):
        return _kind_of(value)(map_values(item, of_type, func) for item in value)
    if type(value) in (dict, ReadOnlyDict):
        return {map_values(k, of_type, func): map_values(v, of_type, func) for k, v in value.items()}
    return value


def _kind_of(value: Any) -> Any:
    """Return the type of a collection, of one that can be changed."""
    return list if isinstance(value, ReadOnlyList) else type(value)
