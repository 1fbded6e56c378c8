"""The benchmarks compare equals: what is written by hand gives the numbers of the framework."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

_BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import each other as neighbours."""
    monkeypatch.setattr(sys, "path", [str(_BENCH), *sys.path])


@pytest.mark.parametrize("options", [{}, {"checkpoint_steps": True}, {"optimize_move_layers_out": False}])
def test_training_by_hand_and_by_config(options: Any) -> None:
    """The same losses in each of the first steps."""
    import attention_model
    import decoder

    decoder.check_losses(attention_model.training_sides(attention_model.TINY, options))


def test_search_by_hand_and_by_config() -> None:
    """The same hypotheses with the same scores."""
    import attention_model
    import beam_search

    assert beam_search.check_hypotheses(beam_search.searching_sides(attention_model.TINY, 3)) > 0


@pytest.mark.parametrize("moved", [True, False])
def test_transformer_of_the_tracing_benchmark_trains(moved: bool) -> None:
    """A small one does its first step."""
    import tracing

    tracing.first_step(tracing.transformer(8, 1, optimize_move_layers_out=moved), 4, 3)


def test_memory_of_a_step_is_measured() -> None:
    """For each side; a tiny batch may need no new memory at all."""
    import attention_model
    import loop_memory

    assert loop_memory.growth("checkpoint_steps", attention_model.TINY) >= 0
