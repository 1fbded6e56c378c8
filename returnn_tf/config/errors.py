"""Errors that a user can cause and mend, and the "did you mean" helper which they share."""

from __future__ import annotations

import difflib
from typing import Dict, Iterable, Optional


class ConfigError(ValueError):
    """Something the user wrote is wrong: the message names the place and the fix. Ends the program with exit code 2."""


class DataError(ValueError):
    """A data file, dataset or batch is wrong: the message names the file or sequence tag. Ends with exit code 1."""


def did_you_mean(name: object, known: Iterable[str], *, max_listed: int = 12) -> str:
    """A sentence with the nearest known spelling, else the list of what is known; ready to be appended to an error.

    :param name: what the user wrote
    :param known: the valid names
    :param max_listed: list all known names only if there are at most that many
    """
    known = sorted(set(known))
    nearest = nearest_name(name, known)
    if nearest is not None:
        return "Did you mean %r?" % nearest
    if not known:
        return "None is known."
    if len(known) <= max_listed:
        return "Known: %s." % ", ".join(known)
    return "Known: %s, ... (%d in all)." % (", ".join(known[:max_listed]), len(known))


def nearest_name(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> Optional[str]:
    """The known name which is most similar to ``name`` (case-insensitive), or None if none is near."""
    lowered: Dict[str, str] = {}
    for candidate in known:
        lowered.setdefault(str(candidate).lower(), str(candidate))
    found = difflib.get_close_matches(str(name).lower(), list(lowered), n=1, cutoff=cutoff)
    return lowered[found[0]] if found else None
