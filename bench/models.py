"""Training steps of whole models here, in Keras, in PyTorch and in plain TensorFlow, side by side.

    python bench/models.py [--row transformer] [--torch /path/to/python] [--rounds 3] [--cpu] [--small] [--whole]
                           [--bfloat16]

Each framework runs in a process of its own, which sleeps while another one is timed; they take turns, so that other
load on the machine hits all of them. Figures are medians over the rounds. Forward is the loss in training; backward is
what the gradients of all parameters take beyond it, update what a whole step takes beyond these; input makes tensors of
arrays. GFLOP/s count the products of the valid frames. Memory is the most that a process had beyond its framework while
it only ran whole steps.

``--torch`` names a Python with PyTorch (``$BENCH_TORCH``); without it there are no such lines: one as it is, one by
``torch.compile``. ``--bfloat16`` is mixed precision: ``torch.autocast``, ``mixed_bfloat16``. ``--part 4`` takes a
quarter of the sequences of each batch; a number per framework in `PARTS` does that for those which need very long, and
the table has their times multiplied. With ``--cpu`` times are CPU seconds of all threads, also
those of sgemm: for a machine with other load.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from report import table
from workers import Worker

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "models_workers"))

from model_rows import ROWS, Model

STEPS = ("step", "forward", "gradients", "input")
HEADER = ("row", "side", "step ms", "forward", "backward", "update", "input", "GFLOP/s", "% of sgemm", "MB")
SIDES = {
    "here": "models_workers/ours.py",
    "Keras": "models_workers/keras_tf.py",
    "PyTorch": "models_workers/pytorch.py",
    "compiled": "models_workers/pytorch.py",
    "plain TF": "models_workers/plain_tf.py",
}
WITH_TORCH = ("PyTorch", "compiled")
PARTS = {("plain TF", "blstm-ctc"): 4, ("Keras", "blstm-ctc"): 4, ("PyTorch", "blstm-ctc"): 4}
"""Who gets 1 / n of the sequences of a row."""


def start(side: str, row: str, args: argparse.Namespace) -> Worker:
    """Start the process of a framework."""
    python, part = args.torch if side in WITH_TORCH else sys.executable, args.part * PARTS.get((side, row), 1)
    if ROWS[row].batch // part < 1:
        raise SystemExit("%s has %d sequences: there is no 1 / %d of them for %s." % (row, ROWS[row].batch, part, side))
    flags = {"small": args.small, "bfloat16": args.bfloat16, "compiled": side == "compiled"}
    arguments = [row, str(part), *(name for name, given in flags.items() if given)]
    return Worker("%s, %s" % (side, row), python, SIDES[side], arguments, args.threads, args.cpu, **waiting(args))


def waiting(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment in which threads of OpenMP that wait do not count as CPU time."""
    return {"OMP_WAIT_POLICY": "passive"} if args.cpu else {}


def compare(row: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the sides; return seconds of each step, and "MB", by side."""
    sides = [side for side in args.sides.split(",") if args.torch or side not in WITH_TORCH]
    sides = [side for side in sides if side != "plain TF" or not args.bfloat16]
    workers, spent = {side: start(side, row, args) for side in sides}, dict.fromkeys(sides, 0.0)
    found: dict[str, dict[str, float]] = {side: {} for side in sides}
    for what in ("step",) if args.whole else STEPS:
        for worker in workers.values():
            worker.wait(what, steps=1)
        spent = dict.fromkeys(sides, 0.0)
        for _ in range(args.rounds):
            for side, worker in workers.items():
                if spent[side] < args.cap:
                    before = time.perf_counter()
                    worker.run(what)
                    spent[side] += time.perf_counter() - before
        for side, worker in workers.items():
            found[side][what] = worker.median(what) * PARTS.get((side, row), 1)
            if what == "step":
                found[side]["MB"] = worker.last["grown_mb"]
    for worker in workers.values():
        worker.close()
    return found


def cells(row: str, side: str, found: dict[str, float], model: Model, args: argparse.Namespace, peak: float) -> list:
    """Return a line of the table."""
    part = PARTS.get((side, row), 1)
    rate = replace(model, batch=model.batch // args.part).gflop() / found["step"]
    times = [found["step"]]
    if not args.whole:
        forward, gradients = found["forward"], found["gradients"]
        times += [forward, gradients - forward, found["step"] - gradients, found["input"]]
    shown = ["%.4g" % (1e3 * seconds) for seconds in times] + ["-"] * (5 - len(times))
    speed = ["-", "-"] if args.small else ["%.0f" % rate, "%.0f" % (100 * rate / peak)]
    return [row, side + (" (1/%d)" % part if part > 1 else ""), *shown, *speed, "%.0f" % found["MB"]]


def sgemm_peak(args: argparse.Namespace) -> float:
    """Return GFLOP/s of a large product by the fastest of TensorFlow, numpy and PyTorch, in separate processes."""
    scripts = [(sys.executable, "models_workers/sgemm.py"), (sys.executable, "lstm_workers/blas.py")]
    scripts += [(args.torch, "lstm_workers/blas.py")] if args.torch else []
    workers = [Worker("sgemm", *script, [], args.threads, args.cpu, **waiting(args)) for script in scripts]
    for worker in workers:
        worker.wait("cube")
    for _ in range(args.rounds):
        for worker in workers:
            worker.run("cube")
    for worker in workers:
        worker.close()
    return 2e-9 * 2048**3 / min(worker.median("cube") for worker in workers)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default=",".join(ROWS), help="some of: " + ", ".join(ROWS))
    parser.add_argument("--sides", default=",".join(SIDES), help="some of: " + ", ".join(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cap", type=float, default=60.0, help="seconds of a process for a kind of step")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--torch", default=os.environ.get("BENCH_TORCH"))
    parser.add_argument("--part", type=int, default=1, help="take 1 / n of the sequences")
    parser.add_argument("--whole", action="store_true", help="whole steps only")
    parser.add_argument("--bfloat16", action="store_true", help="mixed precision; not in plain TensorFlow")
    parser.add_argument("--small", action="store_true", help="a few units: whether everything runs")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads")
    args = parser.parse_args(arguments)
    peak = 1.0 if args.small else sgemm_peak(args)
    if not args.small:
        print("sgemm: %.0f GFLOP/s; %d threads%s" % (peak, args.threads, ", CPU time" if args.cpu else ""), flush=True)
    lines = []
    for row in filter(None, args.row.split(",")):
        found = compare(row, args)
        lines += [cells(row, side, values, ROWS[row], args, peak) for side, values in found.items()]
        others = [values["step"] for side, values in found.items() if side != "here"]
        if "here" in found and others:
            print("%s: here / best other %.2f" % (row, found["here"]["step"] / min(others)), flush=True)
    print("\n" + table(HEADER, lines))


if __name__ == "__main__":
    main()
