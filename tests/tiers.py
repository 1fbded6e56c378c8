"""Which cases of a list `make test` runs, and which only `make test-long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def usual(cases: Iterable[Any], names: Iterable[Any]) -> list[Any]:
    """Return cases for `parametrize`; those that are not named are long, as others take their path through the code."""
    cases, names = list(cases), list(names)
    assert all(name in cases for name in names), names
    return [case if case in names else pytest.param(case, marks=pytest.mark.long) for case in cases]
