"""Names of layers of extra networks: ``extra.<name>:<layer>``."""

from __future__ import annotations

import re
from typing import Optional

#: The prefix of the extra network that searches.
SEARCH_PREFIX = "extra.search:"
_EXTRA = re.compile(r"(extra(?:\.[^:/]+)?:)(.+)", re.DOTALL)


def split_extra(ref: str) -> Optional[tuple[str, str]]:
    """Return (prefix, name of the layer) of a name such as ``extra.search:output``; None for any other name."""
    found = _EXTRA.fullmatch(ref)
    return None if found is None else (found[1], found[2])


def is_extra(path: str) -> bool:
    """Return whether a layer with this path is of an extra network."""
    return split_extra(path) is not None
