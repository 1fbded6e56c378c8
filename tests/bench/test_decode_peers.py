"""bench/decode_peers.py, tiny: the side of this project finds the labels that are counted and compared."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.bench.sides import LABELS, Side


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
def test_each_search_takes_all_steps(peers: Any, dtype: str, tmp_path: Path) -> None:
    points = [(2, 1), (1, 3), (3, 3)]
    args = SimpleNamespace(steps=7, threads=1, points=points)
    asked = json.loads(json.dumps(peers.asked_of(args, dtype, str(tmp_path / "params.npz"))))
    searches = peers.searching(asked)
    shapes = {name: np.shape(search()) for name, search in searches.items()}
    assert shapes == {"2,1": (2, 7), "1,3": (1, 7), "3,3": (3, 7)}
    assert (tmp_path / "params.npz").exists() == (dtype == "float32")


def _sides(labels: Any = LABELS) -> dict[tuple[str, str], Any]:
    return {
        ("here", "float32"): Side("ours", [1.0, 2.0, 4.0]),
        ("CTranslate2", "float32"): Side("theirs", [3.0, 4.0, 4.0], labels),
        ("here", "int8"): Side("ours", [1.0] * 3),
        ("CTranslate2", "int8"): Side("theirs", [0.5] * 3, 1 - LABELS),
    }


def test_ratios_are_medians_of_rounds(peers: Any) -> None:
    args = SimpleNamespace(steps=10, rounds=3)
    assert peers.measured(_sides(), (2, 4), args) == [
        ["2, 4, float32", "10", "5", "2.00", "1.5", "1.00"],
        ["2, 4, int8", "20", "40", "0.50", "1.8", "0.00"],
    ]


@pytest.mark.parametrize(
    "labels, text",
    [
        (LABELS[:, :9], r"theirs found labels of the shape \(2, 9\) for the point 2,4"),
        (np.concatenate([LABELS[:1], 1 - LABELS[:1]]), "only 50 % of the labels are the same for the point 2,4"),
    ],
)
def test_other_labels(peers: Any, labels: Any, text: str) -> None:
    with pytest.raises(SystemExit, match=text):
        peers.measured(_sides(labels), (2, 4), SimpleNamespace(steps=10, rounds=3))


def test_points(peers: Any) -> None:
    assert peers.parsed_points("1,4/16,12") == [(1, 4), (16, 12)]
