"""LSTM and GRU networks here and in other frameworks, side by side: training steps, recurrences, single sequences.

    python bench/lstm.py [--torch /path/to/python] [--rows ce-short,ce-long] [--rounds 5] [--threads 2] [--cpu]
                         [--no-recurrences] [--plot lstm.png]

Each framework runs in a process of its own, which sleeps while another one is timed; they take turns, so that other
load on the machine hits all of them. Figures are medians over the rounds, ratios those of medians; a process that has
used its seconds for a row (``--cap``) takes part in no further round. Where a framework needs a minute or so for a step
it gets a part of the frames, and the table has its time multiplied by that, with a note such as (1/8).

``--torch`` names a Python with PyTorch (``$BENCH_TORCH``); without it those columns are left out. Peak: a product of
2048 x 2048 x 2048 by PyTorch, or without it by numpy, in the same run. GFLOP/s count the products of the valid frames,
without the gradient to the input of the network. Memory is the most that a process had beyond its framework. With
``--cpu`` times are CPU seconds of all threads: for a machine with other load.

Asked: 0.9 x the best other one on ce-short and ce-long, 0.7 x on ce-long-4, 0.5 x on ctc-long-4; recurrences at 85 % of
the peak; two threads 1.7 times as fast as one; single sequences as fast as in PyTorch; the memory of a recurrence, both
passes, at most 7 T B H floats beyond inputs and outputs (these alone are 5 T B H for the LSTM, 4 for the GRU).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

from report import plot, table
from workers import Worker

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lstm_workers"))

from rows import ROWS
from sizes import MEMORY, RECURRENCES, SINGLE, calls, gflop, name_of

LIMITS = {"ce-short": 0.9, "ce-long": 0.9, "ce-long-4": 0.7, "ctc-long-4": 0.5}
PARTS = {("PyTorch", "ce-long-4"): 8, ("PyTorch", "ctc-long-4"): 8, ("Keras", "ctc-long-4"): 4}
"""Who gets 1 / n of the frames of a row."""

STEP_HEADER = ("row", "here ms", "1 thread / %d", "Keras ms", "PyTorch ms", "ratio", "asked", "GFLOP/s", "% of sgemm",
               "MB here", "Keras", "PyTorch")  # fmt: skip
RECURRENCE_HEADER = ("recurrence", "ms", "1 thread / %d", "GFLOP/s", "% of sgemm", "% of its products",
                     "1 thread: GFLOP/s", "% of sgemm", "% of its products")  # fmt: skip


class Sides:
    """The processes of a comparison: our op or network with all threads and with one, and the others."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.workers: dict[str, Worker] = {}
        self.scales: dict[str, int] = {}

    def add(self, name: str, python: str, script: str, arguments: Sequence[str], threads: int, scale: int = 1) -> None:
        """Start a process; its times are multiplied by ``scale``."""
        self.workers[name] = Worker(name, python, "lstm_workers/" + script, arguments, threads, self.args.cpu)
        self.scales[name] = scale

    def take_turns(self, what: str) -> None:
        """Time a step of all, for as many rounds as their seconds last, and at least once."""
        spent = dict.fromkeys(self.workers, 0.0)
        for worker in self.workers.values():
            worker.wait(what)
        for _ in range(self.args.rounds):
            for name, worker in self.workers.items():
                if spent[name] < self.args.cap:
                    start = time.perf_counter()
                    worker.run(what)
                    spent[name] += time.perf_counter() - start

    def seconds(self, name: str, what: str = "step") -> float:
        """Return the median of a step of all frames."""
        return self.workers[name].median(what) * self.scales[name]

    def close(self) -> None:
        """End the processes."""
        for worker in self.workers.values():
            worker.close()


def compare_steps(row: str, args: argparse.Namespace, peak: float) -> dict[str, Any]:
    """Measure whole training steps; return the cells of a row by the names of the columns, and "ratios"."""
    sides, others = Sides(args), ["Keras", "PyTorch"] if args.torch else ["Keras"]
    parts = {name: PARTS.get((name, row), 1) for name in others}
    sides.add("here", sys.executable, "ours.py", [row, "1"], args.threads)
    sides.add("single", sys.executable, "ours.py", [row, "1"], 1)
    sides.add("Keras", sys.executable, "keras_tf.py", [row, str(parts["Keras"])], args.threads, parts["Keras"])
    if args.torch:
        sides.add("PyTorch", args.torch, "pytorch.py", [row, str(parts["PyTorch"])], args.threads, parts["PyTorch"])
    sides.take_turns("step")
    here, rate = sides.seconds("here"), ROWS[row].gflop() / sides.seconds("here")
    ratios = {name: here / sides.seconds(name) for name in others}
    cells: dict[str, Any] = {"row": row, "here ms": "%.4g" % (1e3 * here), "asked": LIMITS.get(row, "")}
    for name in others:
        note = " (1/%d)" % parts[name] if parts[name] > 1 else ""
        cells[name + " ms"] = "%.4g%s" % (1e3 * sides.seconds(name), note)
        cells[name] = "%.0f%s" % (sides.workers[name].last["grown_mb"], note)
    cells["1 thread / %d"] = "%.2f" % (sides.seconds("single") / here)
    cells["ratio"] = "%.2f" % max(ratios.values())
    cells["GFLOP/s"], cells["% of sgemm"] = "%.0f" % rate, "%.0f" % (100 * rate / peak)
    cells["MB here"] = "%.0f" % sides.workers["here"].last["grown_mb"]
    sides.close()
    return {**cells, "ratios": ratios}


def compare_recurrences(args: argparse.Namespace) -> list[str]:
    """Measure recurrences by themselves, and single sequences; return tables."""
    sides = Sides(args)
    for name, threads in (("", args.threads), ("1", 1)):
        sides.add("here" + name, sys.executable, "recurrence.py", [], threads)
        sides.add("blas" + name, args.torch or sys.executable, "blas.py", [], threads)
    for names, steps in (
        (("here", "here1", "blas", "blas1"), [name_of(*size) for size in RECURRENCES]),
        (("blas", "blas1"), ["cube"]),  # once all have started
        (("here", "blas") if args.torch else ("here",), ["single-" + name_of(u, t, 1, n) for u, t, n in SINGLE]),
    ):
        everyone, sides.workers = sides.workers, {name: sides.workers[name] for name in names}
        for step in steps:
            sides.take_turns(step)
        sides.workers = everyone
    tables = [_recurrence_table(sides, args.threads), _single_table(sides, bool(args.torch)), _memory_table(args)]
    sides.close()
    return tables


def _recurrence_table(sides: Sides, threads: int) -> str:
    rows = []
    for size in RECURRENCES:
        step, work, cells = name_of(*size), gflop(*size), []
        for which in ("", "1"):
            here, products, cube = (sides.seconds(side + which, what) for side, what in (("here", step), ("blas", step), ("blas", "cube")))  # fmt: skip  # noqa: E501
            peak = 2e-9 * 2048**3 / cube
            cells += ["%.0f" % (work / here), "%.0f" % (100 * work / here / peak), "%.0f" % (100 * products / here)]
        both = sides.seconds("here", step), sides.seconds("here1", step)
        rows.append([step, "%.4g" % (1e3 * both[0]), "%.2f" % (both[1] / both[0]), *cells])
    return table([name % threads if "%d" in name else name for name in RECURRENCE_HEADER], rows)


def _single_table(sides: Sides, with_torch: bool) -> str:
    rows = []
    for unit, frames, n in SINGLE:
        step = "single-" + name_of(unit, frames, 1, n)
        what = "%d calls of 1 frame" % calls(frames) if frames == 1 else "%d frames" % frames
        here, number = sides.seconds("here", step), calls(frames) * frames
        row = ["%s, %s, %d units" % (unit, what, n), "%.1f" % (1e6 * here / number)]
        if with_torch:
            other = sides.seconds("blas", step)
            row += ["%.1f" % (1e6 * other / number), "%.2f" % (here / other)]
        rows.append(row)
    return table(["one sequence", "us a frame", "PyTorch", "ratio"][: len(rows[0])], rows)


def _memory_table(args: argparse.Namespace) -> str:
    rows = []
    for unit in ("lstm", "gru"):
        sides = Sides(args)
        sides.add("here", sys.executable, "memory.py", [unit], args.threads)
        sides.workers["here"].run("memory")
        rows.append([name_of(unit, *MEMORY), "%.2f" % sides.workers["here"].last["result"]])
        sides.close()
    return table(["memory of both passes, beyond inputs", "T B H floats"], rows)


def sgemm_peak(args: argparse.Namespace) -> float:
    """Return GFLOP/s of a large product, in a process of its own."""
    sides = Sides(args)
    sides.add("blas", args.torch or sys.executable, "blas.py", [], args.threads)
    sides.take_turns("cube")
    peak = 2e-9 * 2048**3 / sides.seconds("blas", "cube")
    sides.close()
    return peak


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cap", type=float, default=15.0, help="seconds of a process for a row")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--torch", default=os.environ.get("BENCH_TORCH"))
    parser.add_argument("--no-recurrences", action="store_true", help="whole steps only")
    parser.add_argument("--plot", help="a picture of the ratios")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads")
    args = parser.parse_args(arguments)
    if not args.no_recurrences:
        print("\n\n".join(compare_recurrences(args)), flush=True)
    peak, lines = sgemm_peak(args), []
    print("\nsgemm: %.0f GFLOP/s; %d threads%s" % (peak, args.threads, ", CPU time" if args.cpu else ""))
    header = [name for name in STEP_HEADER if args.torch or not name.startswith("PyTorch")]
    for row in filter(None, args.rows.split(",")):
        lines.append(compare_steps(row, args, peak))
        print("  ".join("%s %s" % (name, lines[-1][name]) for name in header), flush=True)
    if lines:
        print("\n" + table([name.replace("%d", str(args.threads)) for name in header], [[line[name] for name in header] for line in lines]))  # fmt: skip  # noqa: E501
    if lines and args.plot:
        series = {"time / " + name: [line["ratios"][name] for line in lines] for name in lines[0]["ratios"]}
        plot(args.plot, [line["row"] for line in lines], series, "ours / other", limit=1.0)


if __name__ == "__main__":
    main()
