"""Calls of the functions that users give as options of datasets."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from returnn_tf.config.user_code import call_of_config


@functools.lru_cache(maxsize=256)
def _known_names(function: Callable[..., Any]) -> tuple[bool, frozenset[str]]:
    """Return whether a function takes all keywords, and the names that it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return True, frozenset()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return takes_all, frozenset(parameter.name for parameter in parameters)


def call_with_known(where: str, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call a user's function with those keywords that it takes.

    :param where: how errors begin
    """
    try:
        takes_all, names = _known_names(function)
    except TypeError:  # not hashable
        takes_all, names = _known_names.__wrapped__(function)
    if not takes_all:
        keywords = {name: value for name, value in keywords.items() if name in names}
    return call_of_config(where, functools.partial(function, *args) if args else function, **keywords)
