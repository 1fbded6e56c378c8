"""Tables and plots of measurements, and processes that are timed in turn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import each other as neighbours."""
    monkeypatch.setattr(sys, "path", [str(_BENCH), *sys.path])


def test_table() -> None:
    """The first column to the left, others to the right."""
    import report

    text = report.table(["row", "ms"], [["lines", 1.5], ["a", "10 (slow)"]])
    assert text.splitlines() == [
        "| row   |        ms |",
        "|-------|----------:|",
        "| lines |       1.5 |",
        "| a     | 10 (slow) |",
    ]


def test_plot(tmp_path: Path) -> None:
    """A picture."""
    import report

    path = tmp_path / "ratios.png"
    report.plot(str(path), ["a", "b"], {"one": [1.0, 2.0], "other": [3.0, 4.0]}, "times faster", 3.0)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_worker(tmp_path: Path) -> None:
    """Each step is timed in its own process; the answer has its result, its memory and how often it slept."""
    import workers

    script = tmp_path / "worker.py"
    lines = [
        "import os, sys, time",
        "from workers import serve",
        "wait, fill = lambda: time.sleep(0.05), lambda: len(bytearray(50 << 20).replace(b'x', b'')) + len(sys.argv)",
        "serve(lambda: {'wait': wait, 'fill': fill})",
    ]
    script.write_text("\n".join(lines))
    worker = workers.Worker("test", sys.executable, str(script), ["argument"], 1, False)
    for _ in range(3):
        worker.run("wait")
    assert 0.05 <= worker.median("wait") < 5
    assert worker.last["sleeps"] >= worker.steps("wait")
    worker.run("fill")
    assert worker.last["result"] == (50 << 20) + 2
    assert 50 <= worker.last["grown_mb"] < worker.last["peak_mb"]
    worker.close()
    assert worker.process.returncode == 0


def test_sizes_of_the_mdlstm() -> None:
    """Ragged images within their arrays."""
    from mdlstm_rows import ROWS

    for row in ROWS.values():
        heights, widths = row.sizes()
        assert heights[0] == row.height and widths[0] == row.width
        assert (heights <= row.height).all() and (widths >= row.width // 2).all() and len(widths) == row.batch
        assert 0 < row.gflop() <= 240e-9 * row.batch * row.height * row.width * row.units**2
