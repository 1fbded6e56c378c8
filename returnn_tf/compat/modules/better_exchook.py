"""``import better_exchook; better_exchook.install()``: exceptions with local variables, which are not shown here."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat

register_compat(__name__, "returnn.util.better_exchook", "better_exchook")

__all__ = ["install", "replace_traceback_format_tb"]


def install(*args: Any, **kwargs: Any) -> None:
    """Do nothing: the hook for exceptions of this process stays as it is."""


#: The same: tracebacks are not changed.
replace_traceback_format_tb = install
