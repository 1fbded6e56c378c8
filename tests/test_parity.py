"""Numbers of the reference implementation: outputs, lengths, losses and gradients of small networks."""

from __future__ import annotations

import pytest

from tests.parity import check_case, find_cases

GROUPS = (
    "align", "cells", "combine", "compare", "conv", "dot", "eval", "gather", "linear", "loss", "mask", "norm", 
    "options", "pool", "range", "reduce", "shape", "simple", "slice", "subnet", "switch", "tconv", "variable", "window",
)  # fmt: skip


@pytest.mark.parametrize("name", find_cases(*GROUPS))
def test_case(name: str) -> None:
    check_case(name)


def test_cases_are_there() -> None:
    assert len(find_cases(*GROUPS)) > 300
