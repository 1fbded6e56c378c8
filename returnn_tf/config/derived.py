"""Configs with different values for some keys; the original stays unchanged."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

from returnn_tf.config.config import Config

_MISSING: Any = object()


def derived(
    config: Config, values: Mapping[str, Any], *, hidden: Mapping[str, Any] = types.MappingProxyType({})
) -> Config:
    """Return a new config with the values of another, some of them replaced.

    :param values: key -> Python value; a process which rebuilds the config gets them too
    :param hidden: the same, for values which no other process needs, e.g. the network
    """
    result = Config()
    result.files = list(config.files)
    result._sources = dict(config._sources)
    result._module = config._module
    result._values = {**config._values, "config": result}
    result._texts = dict(config._texts)
    result._places = dict(config._places)
    result._used = config._used  # keys read from the copy count as read
    result._recipe = list(config._recipe)
    result.update(values)
    for key, value in hidden.items():
        result._set(key, value, None)
    return result


@contextlib.contextmanager
def overridden(config: Config, values: Mapping[str, Any]) -> Iterator[None]:
    """Override values of the config itself within the context; its functions see them as globals."""
    names = config._values
    before: dict[str, Any] = {key: names.get(key, _MISSING) for key in values}
    texts = {key: config._texts.pop(key) for key in values if key in config._texts}
    names.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is _MISSING:
                names.pop(key, None)
            else:
                names[key] = value
        config._texts.update(texts)
