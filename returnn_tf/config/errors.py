"""Errors that a user can cause and fix, and the "did you mean" helper which they share."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Optional

#: Longer texts are not misspelt names, and comparing them is slow.
_LONGEST_NAME = 100
_SHORTEST_BEGINNING = 6


#: A module or package sets it to the topic of the errors that it raises: a page of ``returnn-tf explain``.
_TOPIC = "ERROR_TOPIC"


class UserError(ValueError):
    """Something that a user caused and can fix.

    :param topic: the page of ``returnn-tf explain`` on it, or several, separated by blanks; by default that of the
        module which raises the error
    """

    def __init__(self, *args: object, topic: str = "") -> None:
        super().__init__(*args)
        self._topic = topic

    @property
    def topic(self) -> str:
        """Return the pages of ``returnn-tf explain`` on this error, separated by blanks; empty if there is none."""
        return self._topic or next(_topics(self), "")


class ConfigError(UserError):
    """Something the user wrote is wrong: the message names the place and the fix. Ends the program with exit code 2."""


class DataError(UserError):
    """A data file, dataset or batch is wrong: the message names the file or sequence tag. Ends with exit code 1."""


def _topics(exc: BaseException) -> Iterator[str]:
    """Yield the topics of an error and of those that led to it, the first one of these first.

    Within an error they are those of the functions that it passed, the innermost one first: of its module, or else of
    the packages around it.
    """
    if isinstance(exc.__cause__, UserError):
        yield from filter(None, [exc.__cause__.topic])
    frames: list[TracebackType] = []
    trace = exc.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        name = str(frame.tb_frame.f_globals.get("__name__", ""))
        while name:
            topic = getattr(sys.modules.get(name), _TOPIC, "")
            if topic:
                yield topic
            name = name.rpartition(".")[0]


def shown(value: object, *, most: int = 300) -> str:
    """Return the `repr` of a value for an error, shortened in the middle."""
    return shortened(repr(value), most=most)


def shortened(text: str, *, most: int = 2000) -> str:
    """Return a text for an error, without its middle if it is longer than a reader wants."""
    return text if len(text) <= most else "%s ... %s" % (text[: most - 60], text[-50:])


def did_you_mean(name: object, known: Iterable[str], *, max_listed: int = 12, in_order: bool = False) -> str:
    """Return a sentence with the nearest known spelling, else with the list of known names, to append to an error.

    :param name: what the user wrote
    :param known: the valid names
    :param max_listed: list all known names only if there are at most that many
    :param in_order: list them as given instead of sorted
    """
    known = list(dict.fromkeys(known))
    known = known if in_order else sorted(known)
    nearest = nearest_name(name, known)
    if nearest is not None:
        return "Did you mean %r?" % nearest
    if not known:
        return "None is known."
    if len(known) <= max_listed:
        return "Known: %s." % ", ".join(known)
    return "Known: %s, ... (%d in all)." % (", ".join(known[:max_listed]), len(known))


def nearest_name(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> Optional[str]:
    """Return the known name most similar to ``name`` (case-insensitive), or None if none is close.

    Among similar names, the one with the fewest typing mistakes wins, swapped letters counting as one: ``tahn``
    suggests ``tanh``, not ``tan``. The beginning of a single name stands for it.
    """
    lowered: dict[str, str] = {}
    for candidate in known:
        lowered.setdefault(str(candidate).lower(), str(candidate))
    wanted = str(name).lower()
    if len(wanted) > _LONGEST_NAME:
        return None
    longer = [other for other in lowered if other.startswith(wanted)]
    if len(longer) == 1 and len(wanted) >= _SHORTEST_BEGINNING:
        return lowered[longer[0]]
    found = difflib.get_close_matches(wanted, list(lowered), n=5, cutoff=cutoff)
    found = [other for other in found if _could_be_meant(wanted, other)]
    if not found:
        return None
    return lowered[min(found, key=lambda other: (edit_distance(wanted, other), sorted(wanted) != sorted(other)))]


def _could_be_meant(wanted: str, other: str) -> bool:
    """Return False for short words that only share letters, such as ``shape`` and ``state``."""
    return (
        other.startswith(wanted)
        or wanted.startswith(other)
        or edit_distance(wanted, other) <= max(1, (max(len(wanted), len(other)) - 2) // 2)
    )


def edit_distance(a: str, b: str) -> int:
    """Count the insertions, deletions, substitutions and swaps of neighbours which turn ``a`` into ``b``."""
    before: list[int] = []
    previous = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        current = [i]
        for j, other in enumerate(b, 1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]
