"""bench/decode_peers.py, tiny: the side of this project finds the labels that are counted."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(name="peers")
def _peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    import decode_peers
    import transformer_search

    tiny = functools.partial(transformer_search.network, layers=1, dim=16)
    monkeypatch.setattr(transformer_search, "network", tiny)
    monkeypatch.setattr(transformer_search, "DIM", 16)
    monkeypatch.setattr(decode_peers, "LABELS", 50)
    return decode_peers


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_each_search_takes_all_steps(peers: Any, dtype: str) -> None:
    points = [(2, 1), (1, 3), (3, 3)]
    args = SimpleNamespace(steps=7, threads=1, points=points)
    searches = peers.searching(peers.sizes(args, dtype))
    assert {name: search() for name, search in searches.items()} == {"2,1": 14, "1,3": 7, "3,3": 21}


class _Side:
    """A worker whose searches take the times that are given."""

    def __init__(self, name: str, seconds: list[float], labels: int) -> None:
        self.name, self.seconds = name, seconds
        self.times: dict[str, list[float]] = {}
        self.last = {"result": labels}

    def wait(self, what: str, steps: int) -> None:
        """Be ready at once."""

    def run(self, what: str) -> None:
        """Note the next time."""
        self.times.setdefault(what, []).append(self.seconds.pop(0))

    def median(self, what: str) -> float:
        """Return the median of three."""
        return sorted(self.times[what])[1]


def _sides(labels: int = 20) -> dict[tuple[str, str], Any]:
    return {
        ("here", "float32"): _Side("ours", [1.0, 2.0, 4.0], 20),
        ("CTranslate2", "float32"): _Side("theirs", [3.0, 4.0, 4.0], labels),
        ("here", "int8"): _Side("ours", [1.0] * 3, 20),
        ("CTranslate2", "int8"): _Side("theirs", [0.5] * 3, 20),
    }


def test_ratios_are_medians_of_rounds(peers: Any) -> None:
    args = SimpleNamespace(steps=10, rounds=3)
    assert peers.measured(_sides(), (2, 4), args) == [
        ["2, 4, float32", "10", "5", "2.00", "1.5"],
        ["2, 4, int8", "20", "40", "0.50", "1.8"],
    ]


def test_side_that_ends_early(peers: Any) -> None:
    with pytest.raises(SystemExit, match="theirs found 19 labels, not 20"):
        peers.measured(_sides(19), (2, 4), SimpleNamespace(steps=10, rounds=3))


def test_points(peers: Any) -> None:
    assert peers.parsed_points("1,4/16,12") == [(1, 4), (16, 12)]
