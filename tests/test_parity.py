"""Numbers of the reference implementation: outputs, lengths, losses and gradients of small networks.

In `make test` are few that have all classes, options and names of what they compute, in loops and outside of them. That
layers compute the same in each step and for all steps at once is tested in tests/layers, too (test_in_loops.py).
"""

from __future__ import annotations

import pytest

from tests.parity import ROOT, check_case, contents, find_cases
from tests.tiers import covering, usual

#: Every group but the one whose cases have another format (tests/engine/test_updater_parity.py).
GROUPS = sorted({case.parent.name for case in ROOT.glob("*/*.config")} - {"updater"})


#: Layers of cases where hypotheses of the same labels in another order have the same score, as the distribution has no
#: history: which of them a beam keeps is decided by how this CPU rounds. The best one is compared by another layer.
TIES = {"search/explicit_search_sources": ("output",)}


CASES = find_cases(*GROUPS)


@pytest.mark.parametrize("name", usual(CASES, covering({name: contents(name) for name in CASES})))
def test_case(name: str) -> None:
    check_case(name, any_order=TIES.get(name, ()))


def test_cases_are_there() -> None:
    assert len(CASES) > 590
