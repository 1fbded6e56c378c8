"""The Python values of a config as a dict, as code for RETURNN changes them: ``config.typed_dict["task"] = "eval"``."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from returnn_tf.config.readers import RawSetting
from returnn_tf.config.store import ConfigStore


class TypedValues(MutableMapping[str, Any]):
    """The keys of a config that have Python values; those that have texts, as ``++key value`` sets them, are left out.

    :param config: which is read and changed
    """

    def __init__(self, config: ConfigStore) -> None:
        self._config = config

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._config.raw(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._config.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._config.remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._config and not isinstance(self._config.raw(str(key)), RawSetting)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self._config.keys() if key in self])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))
