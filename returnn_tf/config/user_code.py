"""Errors which functions of a config raise when they are called later."""

from __future__ import annotations

import linecache
import traceback
from typing import Optional

CONFIG_MODULE = "__returnn_tf_config__"  # the module name of all code in Python configs


def error_in_config(exc: BaseException) -> Optional[str]:
    """Place, message and line, if the error arose in the code of a config or in what that called; else None.

    :param exc: with its traceback
    """
    found = None
    for frame, line in traceback.walk_tb(exc.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module == CONFIG_MODULE:
            found = (frame.f_code.co_filename, line)
        elif module.split(".")[0] == "returnn_tf":
            found = None  # called by the config, but it is our code which fails
    if found is None:
        return None
    what = "".join(traceback.format_exception_only(type(exc), exc)).strip()
    text = linecache.getline(*found).strip()
    return "%s:%d: %s%s" % (found[0], found[1], what, "\n    " + text if text else "")
