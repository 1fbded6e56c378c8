"""States of allophones: phonemes with their context, and the classes of a state tying."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Optional

from returnn_tf.config import DataError
from returnn_tf.datasets.core.safe_files import read_text

_NO_CONTEXT = "#"


@dataclasses.dataclass
class Allophone:
    """A phoneme in its context.

    :param phone: symbol
    :param before: phonemes before it, the farthest first
    :param after: phonemes after it, the nearest first
    :param initial: whether it begins a word
    :param final: whether it ends a word
    """

    phone: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    initial: bool = False
    final: bool = False

    def state_name(self, state: int) -> str:
        """Return the name of a state as in files of state tyings, e.g. ``a{b+c}@i.0``."""
        marks = ("@i" if self.initial else "") + ("@f" if self.final else "")
        before, after = ("-".join(phones) or _NO_CONTEXT for phones in (self.before, self.after))
        return "%s{%s+%s}%s.%d" % (self.phone, before, after, marks, state)


def word_of(phones: Iterable[str]) -> list[Allophone]:
    """Return the allophones of a word, still without context."""
    word = [Allophone(phone) for phone in phones]
    if word:
        word[0].initial = word[-1].final = True
    return word


def set_context(allophones: Sequence[Allophone], with_context: frozenset[str], size: int) -> None:
    """Set the context of allophones, across words.

    :param with_context: the phonemes that have a context and are one; others end it
    :param size: number of phonemes at each side
    """
    for sequence, name in ((allophones, "before"), (allophones[::-1], "after")):
        context: list[str] = []
        for allophone in sequence:
            if allophone.phone not in with_context:
                context = []
                continue
            setattr(allophone, name, tuple(context if name == "before" else reversed(context)))
            context = (context + [allophone.phone])[-size:] if size else []


class StateTying:
    """The classes of allophone states, from lines "allophone.state class".

    :raises DataError: the file is missing or has other lines
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.classes: dict[str, int] = {}
        for number, line in enumerate(read_text(path).split("\n"), 1):
            parts = line.split()
            if not parts:
                continue
            if len(parts) != 2 or not parts[1].isdecimal():
                text = "state_tying_file %r, line %d: expected 'allophone.state class', got %r."
                raise DataError(text % (path, number, line[:80]))
            self.classes[parts[0]] = int(parts[1])
        if not self.classes:
            raise DataError("state_tying_file %r is empty." % path)
        used = set(self.classes.values())
        self.num_classes = max(used) + 1
        if len(used) < self.num_classes:
            gap = next(index for index in range(self.num_classes) if index not in used)
            raise DataError("state_tying_file %r: the class %d has no states." % (path, gap))

    def labels(self) -> list[str]:
        """Return a name for each class: all its states, sorted, joined by "|"."""
        states: list[list[str]] = [[] for _ in range(self.num_classes)]
        for name, index in sorted(self.classes.items()):
            states[index].append(name)
        return ["|".join(names) for names in states]

    def find(self, name: str) -> Optional[int]:
        """Return the class of a state, None if there is none."""
        return self.classes.get(name)
