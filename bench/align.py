"""Alignments: the native ops, the same in plain TensorFlow, and CTC of TensorFlow and PyTorch, side by side.

    python bench/align.py [--rounds N] [--rows speech,digits] [--threads N] [--cpu] [--torch PYTHON] [--plot align.png]

Losses with their gradients, in compiled functions. Each form has a process of its own, the native ops one more with a
single thread; they take turns, so that other load on the machine hits all. First both forms have to compute the same.
Figures are medians over the rounds, ratios those of medians; 2.0 means that the other one takes twice as long as the
native op. Memory is the most that a process had for all its steps, beyond what TensorFlow needs by itself. ``--torch``
names a Python with PyTorch (``$BENCH_TORCH``). The same on a GPU: ``bench/gpu/align.py``.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any

from align_rows import ROWS
from report import plot, table
from workers import Worker

NAMES = ("fast_bw", "fast_bw:edges", "forced_align", "forced_align:edges", "ctc", "ctc:normalized", "transducer",
         "chunk", "unchunk")  # fmt: skip
HEADER = ["op", "native ms", "one thread / native", "plain / native", "tf.nn.ctc_loss / native", "PyTorch / native"]


def check(native: Worker, plain: Worker, name: str) -> None:
    """Check that both give the same sum.

    :raises SystemExit: they do not
    """
    ours, other = native.last["result"], plain.last["result"]
    if not math.isclose(ours, other, rel_tol=1e-4):
        raise SystemExit("%s: the native op gives %s, the plain form %s" % (name, ours, other))


def measure(row: str, args: argparse.Namespace) -> list[list[Any]]:
    """Print the table of a row; return its lines."""
    script = "align_worker.py"
    native = Worker("native", sys.executable, script, [row, "native"], args.threads, args.cpu)
    plain = Worker("plain", sys.executable, script, [row, "plain"], args.threads, args.cpu, RETURNN_TF_NATIVE="0")
    single = Worker("single", sys.executable, script, [row, "native"], 1, args.cpu)
    torch = (
        Worker("PyTorch", args.torch, "align_worker_torch.py", [row], args.threads, args.cpu) if args.torch else None
    )
    workers = [worker for worker in (native, plain, single, torch) if worker]
    for _ in range(args.rounds):
        for name in NAMES:
            native.run(name)
            plain.run(name)
            check(native, plain, name)
            single.run(name)
        plain.run("tf.nn.ctc_loss")
        if torch:
            torch.run("ctc")
    lines = []
    for name in NAMES:
        own = native.median(name)
        others: list[float] = [single.median(name), plain.median(name)]
        ratios = ["%.2f" % (seconds / own) for seconds in others]
        for worker, what in ((plain, "tf.nn.ctc_loss"), (torch, "ctc")):
            ratios.append("%.2f" % (worker.median(what) / own) if name == "ctc" and worker else "")
        lines.append([name, "%.2f" % (1e3 * own), *ratios])
    print("\n%s: frames %d, batch %d, classes %d, labels %d\n" % (row, *ROWS[row]))
    print(table(HEADER, lines))
    print("\nmemory: %s" % ", ".join("%s %.0f MB" % (worker.name, worker.last["grown_mb"]) for worker in workers))
    sys.stdout.flush()
    for worker in workers:
        worker.close()
    return lines


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads: for a machine with other load")
    parser.add_argument("--torch", default=os.environ.get("BENCH_TORCH"))
    parser.add_argument("--plot", help="write a picture of the ratios to this file")
    args = parser.parse_args()
    print("medians of %d rounds, %d threads%s" % (args.rounds, args.threads, ", CPU time" if args.cpu else ""))
    lines = {row: measure(row, args) for row in args.rows.split(",")}
    if args.plot:
        ratios: dict[str, list[float]] = {row: [float(line[3]) for line in own] for row, own in lines.items()}
        plot(args.plot, NAMES, ratios, "time of the plain form / native")


if __name__ == "__main__":
    main()
