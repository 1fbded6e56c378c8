"""Numbers of the reference implementation: outputs, lengths, losses and gradients of small networks."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf import ConfigError
from tests.parity import ROOT, check_case, find_cases, load_network

#: Every group but the one whose cases have another format (tests/engine/test_updater_parity.py).
GROUPS = sorted({case.parent.name for case in ROOT.glob("*/*.config")} - {"updater"})


#: Recorded cases of layers and losses which do not exist here, with the class that is missing and the reason.
MISSING = {
    "loss/triplet": ("triplet_loss", "its formula could not be recovered from the recorded numbers"),
}

#: Layers of cases where hypotheses of the same labels in another order have the same score, as the distribution has no
#: history: which of them a beam keeps is decided by how this CPU rounds. The best one is compared by another layer.
TIES = {"search/explicit_search_sources": ("output",)}


def _param(name: str) -> Any:
    reason = "not implemented: %s, as %s" % MISSING[name] if name in MISSING else ""
    return pytest.param(name, marks=pytest.mark.skip(reason=reason) if reason else ())


@pytest.mark.parametrize("name", [_param(name) for name in find_cases(*GROUPS)])
def test_case(name: str) -> None:
    check_case(name, any_order=TIES.get(name, ()))


@pytest.mark.parametrize("name", sorted(MISSING))
def test_a_skipped_case_needs_the_missing_class(name: str) -> None:
    """Fails as soon as the class exists, so that no skip outlives its reason."""
    with pytest.raises(ConfigError, match="loss '%s' is not available" % MISSING[name][0]):
        load_network(name)


def test_cases_are_there() -> None:
    assert len(find_cases(*GROUPS)) > 590
