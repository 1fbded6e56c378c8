"""A whole training step of LSTM networks, here and in other frameworks, side by side.

    python bench/lstm.py [--rows ce-short,ce-long] [--rounds 5] [--threads 2] [--torch /path/to/python]

Each framework runs in a process of its own, which sleeps while another one is timed; they take turns, so that other
load on the machine hits all of them. Figures: the median over the rounds, the ratio of the medians, and the share of
the sgemm peak, which is measured in the same run. ``--torch`` names a Python with PyTorch (``$BENCH_TORCH``); without
it that column is left out. Limits: 0.9 x the best other one on ce-short and ce-long, 0.7 x on ce-long-4, 0.5 x on
ctc-long-4.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Dict, List, Optional

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS = os.path.join(HERE, "lstm_workers")
sys.path.insert(0, WORKERS)

from rows import ROWS  # noqa: E402

LIMITS = {"ce-short": 0.9, "ce-long": 0.9, "ce-long-4": 0.7, "ctc-long-4": 0.5}


class Worker:
    """A framework, ready to run steps of a row."""

    def __init__(
        self, name: str, python: str, script: str, row: str, threads: int, by_cpu: bool, **environment: str
    ) -> None:
        self.name = name
        self.times: List[float] = []
        self.by_cpu = by_cpu
        self.peak_mb = 0.0
        variables = {"BENCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
        paths = os.pathsep.join([WORKERS, os.path.dirname(HERE)])
        self.process = subprocess.Popen(
            [python, os.path.join(WORKERS, script), row],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **variables, **environment, "PYTHONPATH": paths},
        )  # fmt: skip

    def run(self, steps: int) -> float:
        """Seconds of a step."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("%d\n" % steps)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("%s ended" % self.name)
        answer = json.loads(line)
        self.peak_mb = answer["peak_mb"]
        return answer["cpu" if self.by_cpu else "seconds"] / steps

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def sgemm_gflops(size: int = 2048) -> float:
    """The peak of this machine, as numpy's library reaches it."""
    a, b = (numpy.random.RandomState(i).rand(size, size).astype("float32") for i in range(2))
    start = time.perf_counter()
    numpy.dot(a, b)
    return 2 * size**3 / (time.perf_counter() - start) / 1e9


def measure(row: str, rounds: int, threads: int, torch: Optional[str], plain: bool, by_cpu: bool) -> Dict[str, float]:
    """Prints the line of a row."""
    workers = [Worker("returnn_tf", sys.executable, "ours.py", row, threads, by_cpu)]
    if plain:
        workers.append(Worker("plain TF", sys.executable, "ours.py", row, threads, by_cpu, RETURNN_TF_NATIVE="0"))
    workers.append(Worker("Keras", sys.executable, "keras_tf.py", row, threads, by_cpu))
    if torch:
        workers.append(Worker("PyTorch", torch, "pytorch.py", row, threads, by_cpu))
    for worker in workers:
        first = worker.run(1)
        worker.steps = max(1, int(0.3 / first))  # type: ignore[attr-defined]
    peaks = []
    for _ in range(rounds):
        for worker in workers:
            worker.times.append(worker.run(worker.steps))  # type: ignore[attr-defined]
        peaks.append(sgemm_gflops())
    medians = {worker.name: float(numpy.median(worker.times)) for worker in workers}
    best_other = min(seconds for name, seconds in medians.items() if name in ("Keras", "PyTorch"))
    gflops, peak = ROWS[row].gflop() / medians["returnn_tf"], float(numpy.median(peaks))
    print("%-12s" % row, "  ".join("%s %.1f ms" % (name, 1e3 * seconds) for name, seconds in medians.items()), end="  ")
    print("| ours / best other %.2f (asked %s)" % (medians["returnn_tf"] / best_other, LIMITS.get(row, "-")), end="  ")
    print("| %.0f GFLOP/s, %.0f %% of sgemm (%.0f)" % (gflops, 100 * gflops / peak, peak), end="  ")
    print("| peak MB", "  ".join("%s %.0f" % (worker.name, worker.peak_mb) for worker in workers), flush=True)
    for worker in workers:
        worker.close()
    return medians


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="ce-short,ce-long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--torch", default=os.environ.get("BENCH_TORCH"))
    parser.add_argument("--plain", action="store_true", help="our loop in plain TensorFlow too")
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time of all threads instead: for a machine with other load"
    )
    args = parser.parse_args()
    print("medians of %d rounds, %d threads%s" % (args.rounds, args.threads, ", CPU time" if args.cpu else ""))
    for row in args.rows.split(","):
        measure(row, args.rounds, args.threads, args.torch, args.plain, args.cpu)


if __name__ == "__main__":
    main()
