"""Numbers of the reference implementation: outputs, lengths, losses and gradients of small networks."""

from __future__ import annotations

import pytest

from tests.parity import ROOT, check_case, find_cases

#: Every group but the one whose cases have another format (tests/engine/test_updater_parity.py).
GROUPS = sorted({case.parent.name for case in ROOT.glob("*/*.config")} - {"updater"})


#: Layers of cases where hypotheses of the same labels in another order have the same score, as the distribution has no
#: history: which of them a beam keeps is decided by how this CPU rounds. The best one is compared by another layer.
TIES = {"search/explicit_search_sources": ("output",)}


@pytest.mark.parametrize("name", find_cases(*GROUPS))
def test_case(name: str) -> None:
    check_case(name, any_order=TIES.get(name, ()))


def test_cases_are_there() -> None:
    assert len(find_cases(*GROUPS)) > 590
