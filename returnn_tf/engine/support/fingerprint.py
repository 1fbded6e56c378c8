"""Hash of all settings, to detect that a run resumes with another config; and the differences."""

from __future__ import annotations

import hashlib
import math
import os
import types
from collections.abc import Iterable, Mapping, Set
from typing import Any, Optional

from returnn_tf.config import Config

_MAX_SHOWN = 60
_ABSENT = "absent"


def fingerprint(config: Config) -> str:
    """Return the SHA-256 (hexadecimal) of keys and values of a config; functions by their code, not address."""
    digest = hashlib.sha256()
    for key in sorted(config.keys()):
        digest.update(_bytes("%s=%s\n" % (key, _canonical(config.typed(key)))))
    return digest.hexdigest()


def settings(config: Config, keys: Optional[Iterable[str]] = None, *, folders: bool = True) -> dict[str, str]:
    """Return key -> value as text, or a hash of it if it is long.

    :param keys: default: all of the config; missing ones are skipped
    :param folders: whether the folder counts in a value that is a path
    """
    found: dict[str, str] = {}
    for key in sorted(config.keys() if keys is None else keys):
        value = config.typed(key)
        if value is not None:
            found[key] = as_text(value if folders else _without_folders(value))
    return found


def as_text(value: Any) -> str:
    """Return a config value as text, or a hash of it if it is long; the same in all processes."""
    text = _canonical(value)
    return text if len(text) <= _MAX_SHOWN else "sha256 " + hashlib.sha256(_bytes(text)).hexdigest()[:32]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences of two `settings`: ``batch_size (was 3, is 2)``; only the key for long values."""
    lines = []
    for key in sorted(set(before) | set(now)):
        old, new = before.get(key, _ABSENT), now.get(key, _ABSENT)
        if old != new:
            hidden = any(text.startswith("sha256 ") for text in (old, new))
            lines.append(key if hidden else "%s (was %s, is %s)" % (key, old, new))
    return lines


def plain(value: Any) -> Any:
    """Return a config value in types of JSON, for people to read and compare; code is named, with a hash of it."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (str, int, type(None))) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, types.FunctionType):
        return "function %s, %s" % (value.__name__, hashlib.sha256(_bytes(_canonical(value))).hexdigest()[:8])
    return repr(value) if isinstance(value, (bytes, float)) else _canonical(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf8", "backslashreplace")


def _without_folders(value: Any) -> Any:
    """Return the value with absolute paths cut to their last part: files may move between two runs."""
    if isinstance(value, dict):
        return {_without_folders(key): _without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_without_folders(item) for item in value]
        # a tuple may be a key, as in {(1, 5): {"max_mean_len": 50}}
        return items if isinstance(value, list) else frozenset(items) if isinstance(value, Set) else tuple(items)
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted((_canonical(key), _canonical(item)) for key, item in value.items())
        return "{%s}" % ",".join("%s:%s" % item for item in items)
    if isinstance(value, (list, tuple)):
        return "[%s]" % ",".join(_canonical(item) for item in value)
    if isinstance(value, (set, frozenset)):
        return "{%s}" % ",".join(sorted(_canonical(item) for item in value))
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return repr(value)
    if isinstance(value, types.FunctionType):
        return _code(value.__code__)
    return "%s.%s" % (type(value).__module__, getattr(value, "__qualname__", type(value).__qualname__))


def _code(code: types.CodeType) -> str:
    constants = [_code(item) if isinstance(item, types.CodeType) else _canonical(item) for item in code.co_consts]
    return "def %s(%s)" % (code.co_name, ",".join([code.co_code.hex(), repr(code.co_names)] + constants))
