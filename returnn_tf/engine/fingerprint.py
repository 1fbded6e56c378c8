"""A hash of all settings, so that a checkpoint can tell whether a run goes on with the same config."""

from __future__ import annotations

import hashlib
import types
from typing import Any


def fingerprint(config: Any) -> str:
    """SHA-256 (hexadecimal) over keys and values of a Config; functions count by their code, not their address."""
    digest = hashlib.sha256()
    for key in sorted(config.keys()):
        digest.update(("%s=%s\n" % (key, _canonical(config.typed(key)))).encode("utf8", "backslashreplace"))
    return digest.hexdigest()


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
