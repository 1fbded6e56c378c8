"""LSTM language models with many words: a training step here, in Keras, plain TensorFlow and PyTorch, side by side.

    python bench/lm.py [--torch /path/to/python] [--rows 1x512,2x512-ragged] [--rounds 3] [--cpu] [--set name=json]

Each side runs in a process of its own, in turn. Figures are medians; with ``--cpu`` CPU seconds of all threads, for a
machine with other load. "ratio" is our time divided by the shortest of the others, "memory" ours divided by that of
Keras, each beyond the framework itself. Asked: at most 0.6 and 0.7.
"""

from __future__ import annotations

import argparse
import os
import sys

from report import table
from workers import Worker

WORDS = 50_000
#: units, layers, sequences, frames, length of the shortest sequence as a share of the longest
ROWS = {
    "1x512": (512, 1, 32, 32, 1.0),
    "1x512-ragged": (512, 1, 32, 32, 0.2),
    "2x512": (512, 2, 32, 32, 1.0),
    "2x1024-ragged": (1024, 2, 32, 32, 0.2),
}
SIDES = ("here", "Keras", "plain", "PyTorch")
HEADER = ("row", "here ms", "Keras ms", "plain ms", "PyTorch ms", "ratio", "MB here", "Keras", "plain", "PyTorch", "memory")  # fmt: skip  # noqa: E501


def compare(row: str, args: argparse.Namespace) -> list[str]:
    """Time the step of a row on all sides: the cells of the table."""
    sides = [side for side in args.sides.split(",") if side != "PyTorch" or args.torch]
    workers: dict[str, Worker] = {}
    for side in sides:
        python = args.torch if side == "PyTorch" else sys.executable
        given = [side, str(args.words), *map(str, ROWS[row])]
        given += args.set if side == "here" else []
        workers[side] = Worker(side, python, "lm_worker.py", given, args.threads, args.cpu)
    for worker in workers.values():
        worker.wait()
    for _ in range(args.rounds):
        for worker in workers.values():
            worker.run()
    times = {side: worker.median() for side, worker in workers.items()}
    memory = {side: float(worker.last["grown_mb"]) for side, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    others = [seconds for side, seconds in times.items() if side != "here"]
    ratio = "%.2f" % (times["here"] / min(others)) if others and "here" in times else ""
    share = "%.2f" % (memory["here"] / memory["Keras"]) if {"here", "Keras"} <= set(memory) else ""
    cells = ["%.0f" % (1e3 * times[side]) if side in times else "" for side in SIDES]
    return [row, *cells, ratio, *("%.0f" % memory[side] if side in memory else "" for side in SIDES), share]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--words", type=int, default=WORDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--torch", default=os.environ.get("BENCH_TORCH"))
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads")
    parser.add_argument("--set", action="append", default=[], help="a setting of our config, e.g. jit_compile=true")
    args = parser.parse_args()
    print(table(HEADER, [compare(row, args) for row in args.rows.split(",")]))


if __name__ == "__main__":
    main()
