"""``import better_exchook; better_exchook.install()``: exceptions with local variables, which are not shown here."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Any, Optional

from returnn_tf.compat.imports.stand_ins import register_compat

register_compat(__name__, "returnn.util.better_exchook", "better_exchook")

__all__ = ["better_exchook", "format_tb", "install", "print_tb", "replace_traceback_format_tb", "setup_all"]


def install(*args: Any, **kwargs: Any) -> None:
    """Do nothing: the hook for exceptions of this process stays as it is."""


#: The same: tracebacks are not changed.
replace_traceback_format_tb = install
setup_all = install


def better_exchook(
    etype: Any, value: BaseException, tb: Optional[TracebackType] = None, file: Any = None, **options: Any
) -> None:
    """Print an exception with its traceback.

    :param file: a text file (default: the error stream)
    """
    del options
    traceback.print_exception(etype, value, tb, file=sys.stderr if file is None else file)


def format_tb(tb: Optional[TracebackType] = None, limit: Optional[int] = None, **options: Any) -> list[str]:
    """Return the lines of a traceback."""
    del options
    return traceback.format_tb(tb, limit)


def print_tb(tb: Optional[TracebackType] = None, file: Any = None, limit: Optional[int] = None, **options: Any) -> None:
    """Print the lines of a traceback.

    :param file: a text file (default: the error stream)
    """
    print("".join(format_tb(tb, limit, **options)), end="", file=sys.stderr if file is None else file)
