"""MDLSTM training on images: the native op and the same recurrence as a loop over anti-diagonals in plain TensorFlow.

    python bench/mdlstm.py [--rounds N] [--rows digits,lines] [--threads N] [--cpu] [--rounded] [--plot mdlstm.png]

For each row forward and backward of the recurrence alone, and a whole step: projection of the input, four directions,
their sum, gradients of all parameters, Adam. Images are ragged: 50 - 100 % of the height and width of the array. Each
form has a process of its own, the native op one more with a single thread; they take turns, so that other load on the
machine hits all. First both forms have to compute the same. Figures are medians over the rounds, ratios those of
medians. GFLOP/s count the products of the recurrence of valid pixels only: 60 n^2 for each pixel and direction,
forward and backward; the peak is that of a large sgemm of numpy in the same run. Memory is the most that a process
had beyond what TensorFlow needs by itself. Asked: at least 3 times faster.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any

import numpy as np
from mdlstm_rows import ROWS
from report import plot, table
from workers import Worker, sgemm_gflops

ASKED = 3.0
STEPS = {"recurrence": "recurrence", "step": "whole step"}
HEADER = (
    "row",
    "what",
    "native ms",
    "plain ms",
    "ratio",
    "1 thread / %d",
    "GFLOP/s",
    "% of sgemm",
    "native MB",
    "plain MB",
)


def measure(name: str, rounds: int, threads: int, by_cpu: bool, with_rounded: bool) -> list[dict[str, float]]:
    """Measure a row: the recurrence, and the whole step.

    :param with_rounded: also the native op with recurrent products of rounded factors
    :raises SystemExit: the forms differ
    """

    def worker(form: str, count: int) -> Worker:
        return Worker("%s, %s" % (name, form), sys.executable, "mdlstm_worker.py", [name, form], count, by_cpu)

    workers = [worker("native", threads), worker("plain", threads), worker("native", 1)]
    native, plain, single = workers
    workers += [worker("rounded", threads)] if with_rounded else []
    peaks, results = [], []
    for what in STEPS:
        values = []
        for one in workers:
            one.run(what)
            values.append(one.last["result"])
        if what == "recurrence" and not all(math.isclose(values[0], x, rel_tol=1e-3) for x in values[:3]):
            raise SystemExit("the forms differ in %s: %s" % (name, values))
        for _ in range(rounds):
            for one in workers:
                one.run(what)
            peaks.append(sgemm_gflops())
        times = {one: float(np.median(one.times[what][1:])) for one in workers}
        gflops = ROWS[name].gflop() / times[native]
        results.append({
            "native": times[native], "plain": times[plain], "ratio": times[plain] / times[native],
            "scaling": times[single] / times[native], "gflops": gflops, "share": gflops / float(np.median(peaks)),
            "native_mb": native.last["grown_mb"], "plain_mb": plain.last["grown_mb"],
        })  # fmt: skip
        if with_rounded:
            results[-1]["rounded"] = times[workers[3]] / times[native]
    for one in workers:
        one.close()
    return results


def line(name: str, what: str, result: dict[str, float]) -> list[Any]:
    """Return a row of the table."""
    return [
        name, STEPS[what], "%.1f" % (1e3 * result["native"]), "%.1f" % (1e3 * result["plain"]),
        "%.1f%s" % (result["ratio"], "" if result["ratio"] >= ASKED else " (too slow)"), "%.2f" % result["scaling"],
        "%.1f" % result["gflops"], "%.0f" % (100 * result["share"]), "%.0f" % result["native_mb"],
        "%.0f" % result["plain_mb"], *("%.2f" % result[key] for key in ("rounded",) if key in result),
    ]  # fmt: skip


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed runs of each side")
    parser.add_argument("--rows", default=",".join(ROWS), help="which of: %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds instead: for a machine with other load")
    parser.add_argument("--rounded", action="store_true", help="also with recurrent factors rounded to bfloat16")
    parser.add_argument("--plot", help="a picture of the ratios")
    args = parser.parse_args()
    names = args.rows.split(",")
    results = {name: measure(name, args.rounds, args.threads, args.cpu, args.rounded) for name in names}
    print("medians of %d rounds, %d threads%s" % (args.rounds, args.threads, ", CPU time" if args.cpu else ""))
    header = [column % args.threads if "%d" in column else column for column in HEADER]
    header += ["rounded / native"] if args.rounded else []
    print(table(header, [line(name, what, one) for name in names for what, one in zip(STEPS, results[name])]))
    if args.plot:
        ratios = {text: [results[name][i]["ratio"] for name in names] for i, text in enumerate(STEPS.values())}
        plot(args.plot, names, ratios, "times faster than plain TensorFlow", ASKED)


if __name__ == "__main__":
    main()
