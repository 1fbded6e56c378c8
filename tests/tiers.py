"""Which cases of a list `make test` runs, and which only `make test-long`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case", bound=Hashable)


def usual(cases: Iterable[Any], names: Iterable[Any]) -> list[Any]:
    """Return cases for `parametrize`; those that are not named are long, as others take their path through the code."""
    cases, names = list(cases), list(names)
    assert all(name in cases for name in names), names
    return [case if case in names else pytest.param(case, marks=pytest.mark.long) for case in cases]


def covering(contents: Mapping[Case, Iterable[Hashable]]) -> list[Case]:
    """Return few cases that have all contents of all cases: again and again the one with the most that is left."""
    sets = {case: set(found) for case, found in contents.items()}
    left, chosen = set().union(*sets.values()), []
    while left:
        chosen.append(max(sets, key=lambda case: len(sets[case] & left)))
        left -= sets[chosen[-1]]
    return chosen
