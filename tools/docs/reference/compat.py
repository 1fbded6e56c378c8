"""Page of the modules and names that configs import from RETURNN."""

from __future__ import annotations

import types
from typing import Any

from returnn_tf.compat.imports.stand_ins import COMPAT
from returnn_tf.config.reference import first_sentence
from tools.docs.reference.classes import Pages, heading, sections
from tools.docs.reference.docstrings import code, inline

_INTRO = (
    "What configs written for RETURNN import from it, and what stands in for it here; "
    "[more about this](../code-in-configs.md)."
)


def compat_pages() -> Pages:
    """Return path -> Markdown."""
    entries = []
    for name, module in COMPAT.items():
        rows = ["* %s: %s" % (code(key), inline(first_sentence(what))) for key, what in _names(module)]
        also = ", ".join(map(code, COMPAT.names_of(module)[1:]))
        text = inline(" ".join((module.__doc__ or "").partition("\n\n")[0].split()))
        parts = [text, also and "Also called %s." % also, "\n".join(rows)]
        entries.append((heading(name, name), "\n\n".join(part for part in parts if part)))
    return {"reference/names-of-returnn.md": "# Names of RETURNN\n\n%s\n\n%s" % (_INTRO, sections(entries))}


def _names(module: types.ModuleType) -> list[tuple[str, Any]]:
    """Return (name, class or function) of what a module offers: all public ones, wherever they are defined."""
    public = getattr(module, "__all__", None) or [key for key in vars(module) if not key.startswith("_")]
    found = [(key, getattr(module, key)) for key in sorted(public)]
    return [
        (key, what)
        for key, what in found
        if callable(what) and getattr(what, "__module__", "").startswith("returnn_tf") and key != "register_compat"
    ]
