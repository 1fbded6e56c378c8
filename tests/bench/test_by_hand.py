"""The benchmarks compare equals: what is written by hand gives the numbers of the framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from returnn_tf.native.library import load

_BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import each other as neighbours."""
    monkeypatch.setattr(sys, "path", [str(_BENCH), *sys.path])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"checkpoint_steps": True}, {"optimize_move_layers_out": False}])
def test_training_by_hand_and_by_config(options: Any) -> None:
    """The same losses in each of the first steps."""
    import attention_model
    import decoder

    decoder.check_losses(attention_model.training_sides(attention_model.TINY, options))


@pytest.mark.slow
def test_search_by_hand_and_by_config() -> None:
    """The same hypotheses with the same scores."""
    import attention_model
    import beam_search

    assert beam_search.check_hypotheses(beam_search.searching_sides(attention_model.TINY, 3)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("moved", [True, False])
def test_transformer_of_the_tracing_benchmark_trains(moved: bool) -> None:
    """A small one does its first step."""
    import tracing

    tracing.first_step(tracing.transformer(8, 1, optimize_move_layers_out=moved), 4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["framework", "checkpoint_steps"])
def test_memory_of_a_step_is_measured(side: str) -> None:
    """At least the scores of all real steps, which the loss turns into their gradient in the same memory.

    Large blocks are mapped anew, so that pages which the process has to spare do not hide them.
    """
    code = (
        "import attention_model, loop_memory\n"
        "sizes = attention_model.Sizes(8, 40, 20, 16, 16, 16, 16, 16, 20000)\n"
        "steps = int(attention_model.feed(sizes)['classes/size0'].sum())\n"
        "print(loop_memory.growth(%r, sizes), 4 * steps * sizes.labels / 2**20)" % side
    )
    path = os.pathsep.join([str(_BENCH), str(_BENCH.parent)])
    mapped = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    environment = {**os.environ, **mapped, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    growth, needed = map(float, done.stdout.split()[-2:])
    assert 0.7 * needed < growth < 30 * needed


@pytest.mark.slow
def test_recurrences_in_parallel_and_step_by_step() -> None:
    """The same loss and gradients; the copies are measured on the arrays of the scan."""
    import recurrences

    assert "mamba" in recurrences.parallel_units()
    sides = recurrences.Sides("lru", 3, 5, 2, {"d_state": 2})
    assert sides.largest_difference() < 1e-4
    assert sides.frame(7).shape == (2, 3)
    recurrences.scan_ops(recurrences.tf.float32)
    scan = recurrences.Scan(4, 2, 16, 2, True, 2)
    scan.forward()
    scan.backward()
    state, expected = 0.5 + 0.5j, {0.5}
    for _ in range(4):
        state = (0.5 + 0.5j) * state + 0.5 + 0.5j
        expected.add(state.real)
    assert set(scan.kept[2 * 3].tolist()) == expected  # behind a, b and h0, each in two parts


@pytest.mark.parametrize("kind, rounded", [(0, False), (1, False), (2, False), (1, True)])
def test_sides_of_the_benchmark_of_products(kind: int, rounded: bool) -> None:
    """Both compute the same product, also for gradients."""
    import products

    ops = load("product", products.self_test)
    theirs, ours = products.sides(ops, 30, 400, 200, products.KINDS[kind], rounded=rounded)
    assert theirs() == pytest.approx(ours(), abs=1e-3, rel=1e-2 if rounded else 1e-6)
