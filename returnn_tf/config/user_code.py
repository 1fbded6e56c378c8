"""Functions of a config that are called later: the config in use for them, and their errors."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Callable, Optional

from returnn_tf.config.errors import CodeError, ConfigError, DataError, UserError, shortened
from returnn_tf.config.user_files import USER_CODE, resolving_imports

CONFIG_MODULE = "__returnn_tf_config__"  # the module name of all code in Python configs
IMPORT = "import_for_configs"  # the function behind import statements of such code

_in_use: contextvars.ContextVar[Any] = contextvars.ContextVar("config in use", default=None)


@contextlib.contextmanager
def using_config(config: Any) -> Iterator[None]:
    """Make this the config in use within the context, which functions of a config get."""
    token = _in_use.set(config)
    try:
        with resolving_imports():
            yield
    finally:
        _in_use.reset(token)


def config_in_use() -> Any:
    """Return the config whose network is being computed, else the one whose file was read last, else None."""
    config = _in_use.get()
    return getattr(sys.modules.get(CONFIG_MODULE), "config", None) if config is None else config


def call_of_config(where: str, function: Any, **arguments: Any) -> Any:
    """Call a function from a config, within `resolving_imports`.

    :param where: prefix of errors, e.g. "config key 'get_network'"
    :raises ConfigError: it does not take these arguments, and has no source lines to show
    """
    try:
        with resolving_imports():
            return function(**arguments)
    except TypeError as exc:
        trace = exc.__traceback__
        if getattr(function, "__code__", None) is None and trace is not None and trace.tb_next is None:
            names = ", ".join(arguments) or "no arguments"
            raise CodeError("%s: %r can't be called with %s: %s" % (where, function, names, exc)) from exc
        raise


def result_of_config(where: str, function: Any, *, error: type[UserError] = CodeError, **arguments: Any) -> Any:
    """Call a function from a config, and turn every exception in it into one error.

    :param where: prefix of errors
    :param error: the class of it
    """
    try:
        return call_of_config(where, function, **arguments)
    except (ConfigError, DataError, MemoryError):
        raise
    except Exception as exc:
        raise error(
            "%s: %s" % (where, error_in_config(exc) or shortened("%s: %s" % (type(exc).__name__, exc)))
        ) from exc


def error_in_config(exc: BaseException) -> Optional[str]:
    """Return place, message and line of an error raised in the code of a config or called from there; else None.

    The code of a config includes the files beside it that it imports.

    :param exc: with its traceback
    """
    found = _called_wrongly(exc)
    for frame, line in traceback.walk_tb(exc.__traceback__) if found is None else ():
        if USER_CODE in frame.f_builtins:
            found = (frame.f_code.co_filename, line)
        elif frame.f_code.co_name != IMPORT and str(frame.f_globals.get("__name__", "")).startswith("returnn_tf."):
            found = None  # called by the config, but our own code fails
    if found is None:
        return None
    what = described(exc)
    text = shortened(linecache.getline(*found).strip(), most=300)
    return "%s:%d: %s%s" % (found[0], found[1], what, "\n    " + text if text else "")


def described(exc: BaseException) -> str:
    """Return type and text of an error in the code of a config, with the fix where it is known."""
    what = shortened("".join(traceback.format_exception_only(type(exc), exc)).strip())
    lines = [frame.line or "" for frame in traceback.extract_tb(exc.__traceback__)]
    if isinstance(exc, OSError) and any("getlogin(" in line for line in lines):
        what += ". There is no terminal here, as in containers and jobs: use getpass.getuser() instead of os.getlogin()"
    return what


def _called_wrongly(exc: BaseException) -> Optional[tuple[str, int]]:
    """Return the first line of a function of a config that did not accept the arguments that we gave it."""
    match = re.match(r"(?:\S+\.)?([\w<>]+)\(\) (takes|missing|got an unexpected|got multiple)", str(exc))
    if not isinstance(exc, TypeError) or match is None:
        return None
    frame = list(traceback.walk_tb(exc.__traceback__))[-1][0]
    this = frame.f_locals.get("self")
    for value in [*frame.f_locals.values(), *getattr(this, "__dict__", {}).values()]:
        code = getattr(value, "__code__", None)
        builtins = getattr(value, "__globals__", {}).get("__builtins__", {})  # a module, or its dict
        if code is not None and code.co_name == match.group(1) and USER_CODE in getattr(builtins, "__dict__", builtins):
            return code.co_filename, code.co_firstlineno
    return None


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

    :param where: prefix of errors
    """
    try:
        takes_all, names = _known_names(function)
    except TypeError:  # not hashable
        takes_all, names = _known_names.__wrapped__(function)
    if not takes_all:
        keywords = {name: value for name, value in keywords.items() if name in names}
    return call_of_config(where, functools.partial(function, *args) if args else function, **keywords)
