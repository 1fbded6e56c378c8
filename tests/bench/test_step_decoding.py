"""bench/step_decoding.py: what its table says of times and labels that are given."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.bench.sides import LABELS, Side

ARGS = SimpleNamespace(steps=10, rounds=3)


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    import step_decoding

    return step_decoding


def test_ratios_are_medians_of_rounds(bench: Any) -> None:
    sides = [Side("network", [1.0, 2.0, 4.0]), Side("steps", [4.0, 4.0, 16.0])]
    assert bench.measured(sides, (2, 4), ARGS) == [
        ["2, 4, network", "10", "1.00", "1.00"],
        ["2, 4, steps", "5", "0.25", "1.00"],
    ]


@pytest.mark.parametrize(
    "labels, text",
    [
        (LABELS[:, :9], r"steps found labels of the shape \(2, 9\) for the point 2,4"),
        (np.concatenate([LABELS[:1], 1 - LABELS[:1]]), "steps: only 50 % of the labels are the same for the point 2,4"),
    ],
)
def test_other_labels(bench: Any, labels: Any, text: str) -> None:
    with pytest.raises(SystemExit, match=text):
        bench.measured([Side("network", [1.0] * 3), Side("steps", [1.0] * 3, labels)], (2, 4), ARGS)
