"""Functions of a config that are called later: the config they ask for, and the errors they raise."""

from __future__ import annotations

import contextlib
import contextvars
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Optional

CONFIG_MODULE = "__returnn_tf_config__"  # the module name of all code in Python configs

_in_use: contextvars.ContextVar[Any] = contextvars.ContextVar("config in use", default=None)


@contextlib.contextmanager
def using_config(config: Any) -> Iterator[None]:
    """Make this the config in use within the context: functions of a config get it when they ask for one."""
    token = _in_use.set(config)
    try:
        yield
    finally:
        _in_use.reset(token)


def config_in_use() -> Any:
    """Return the config whose network is being computed, else the one whose file was read last, else None."""
    config = _in_use.get()
    return getattr(sys.modules.get(CONFIG_MODULE), "config", None) if config is None else config


def error_in_config(exc: BaseException) -> Optional[str]:
    """Return place, message and line of an error raised in the code of a config or called from there; else None.

    :param exc: with its traceback
    """
    found = _called_wrongly(exc)
    for frame, line in traceback.walk_tb(exc.__traceback__) if found is None else ():
        module = str(frame.f_globals.get("__name__", ""))
        if module == CONFIG_MODULE:
            found = (frame.f_code.co_filename, line)
        elif module.split(".")[0] == "returnn_tf":
            found = None  # called by the config, but our own code fails
    if found is None:
        return None
    what = "".join(traceback.format_exception_only(type(exc), exc)).strip()
    text = linecache.getline(*found).strip()
    return "%s:%d: %s%s" % (found[0], found[1], what, "\n    " + text if text else "")


def _called_wrongly(exc: BaseException) -> Optional[tuple[str, int]]:
    """Return the first line of a config function that did not accept the arguments that we gave it."""
    match = re.match(r"(?:\S+\.)?([\w<>]+)\(\) (takes|missing|got an unexpected|got multiple)", str(exc))
    if not isinstance(exc, TypeError) or match is None:
        return None
    frame = list(traceback.walk_tb(exc.__traceback__))[-1][0]
    this = frame.f_locals.get("self")
    for value in [*frame.f_locals.values(), *getattr(this, "__dict__", {}).values()]:
        code = getattr(value, "__code__", None)
        if code is not None and code.co_name == match.group(1) and value.__module__ == CONFIG_MODULE:
            return code.co_filename, code.co_firstlineno
    return None
