"""Numbers of the reference implementation: outputs, lengths, losses and gradients of small networks."""

from __future__ import annotations

import pytest

from tests.parity import check_case, find_cases

GROUPS = (
    "align", "cells", "combine", "compare", "cond", "conv", "dot", "eval", "gather", "linear", "loss", "mask", "models",
    "norm", "options", "pool", "range", "rec_train", "reduce", "search", "shape", "simple", "slice", "subnet", "switch",
    "tconv", "variable", "window",
)  # fmt: skip


@pytest.mark.parametrize("name", find_cases(*GROUPS))
def test_case(name: str) -> None:
    check_case(name)


def test_cases_are_there() -> None:
    assert len(find_cases(*GROUPS)) > 300
