"""The names of dims for users."""

from __future__ import annotations

from typing import Any

#: Descriptions of the automatic dims of `extern_data`; ``stag:`` names in configs search this text.
EXTERN_PREFIX = "time:var:extern_data:"


def brief_name(dim: Any) -> str:
    """Return the name to show; that of a derived dim has those of its operands. Empty without a name."""
    if dim.description.startswith(EXTERN_PREFIX):
        key = dim.description[len(EXTERN_PREFIX) :]
        return "time" if key == "data" else "time:%s" % key
    if dim.description or dim.expr is None:
        return str(dim.description)
    shown: str = dim.expr.show(lambda operand: brief_name(operand) or str(operand)) if dim.expr.args else ""
    return shown
