"""Beam search with a Transformer decoder, here and in CTranslate2: labels per second, in float32 and int8.

    python bench/decode_peers.py --ctranslate2 PYTHON [--points 1,1/16,4] [--rounds N] [--steps N] [--threads N] [--cpu]

PYTHON is one that imports ctranslate2 and numpy. The decoder is that of bench/transformer_search.py: 6 layers (512, 8
heads, feed-forward 2048) over 30 encoder frames, 10 000 labels; a point is a number of sentences and a beam. Both have
random parameters, and no hypothesis ends before the last step. Each side and type runs in a process of its own, in
turn; speeds are medians and count the labels of the best hypotheses, ratios are medians of those within a round.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from typing import Any, Callable

import numpy as np
import transformer_search
from report import table
from workers import Worker, serve

#: type -> what is asked of our speed over theirs
ASKED = {"float32": 1.5, "int8": 1.8}
POINTS = [(batch, beam) for batch in (1, 16, 64) for beam in (1, 4, 12)]
LABELS = 10000


def sizes(args: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Return what a worker is told: the model, the points, and how to run them."""
    t = transformer_search
    return {
        "model": {"layers": t.LAYERS, "dim": t.DIM, "heads": t.HEADS, "hidden": t.HIDDEN, "labels": LABELS},
        "frames": t.FRAMES, "steps": args.steps, "threads": args.threads, "points": args.points, "dtype": dtype,
    }  # fmt: skip


def searching(asked: dict[str, Any]) -> dict[str, Callable[[], int]]:
    """Return a search for each point; it returns the number of labels."""

    @functools.lru_cache(maxsize=1)  # points are in the order of beams
    def net(beam: int) -> Any:
        quantize = None if asked["dtype"] == "float32" else asked["dtype"]
        return transformer_search.searcher(beam, LABELS, asked["steps"], quantize)

    def search(batch: int, beam: int) -> int:
        found = net(beam).run(transformer_search.sources(batch)).layers["decision"].value
        return int(found.size)

    return {"%d,%d" % tuple(point): functools.partial(search, *point) for point in asked["points"]}


def parsed_points(text: str) -> list[tuple[int, int]]:
    """Return (sentences, beam) for each part of "1,4/16,12"."""
    points = []
    for part in text.split("/"):
        batch, beam = part.split(",")
        points.append((int(batch), int(beam)))
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ctranslate2", required=True, metavar="PYTHON", help="a Python that imports it")
    parser.add_argument("--points", type=parsed_points, default=POINTS, help="sentences,beam/sentences,beam/...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds: for a machine with other load")
    args = parser.parse_args()
    args.points = sorted(args.points, key=lambda point: (point[1], point[0]))  # a network for each beam
    workers: dict[tuple[str, str], Worker] = {}
    for dtype in ASKED:
        asked = json.dumps(sizes(args, dtype))
        for side, python, script, options in (
            ("here", sys.executable, "decode_peers.py", ["--worker", asked]),
            ("CTranslate2", args.ctranslate2, "decode_worker_ctranslate2.py", [asked]),
        ):
            worker = Worker("%s, %s" % (side, dtype), python, script, options, args.threads, args.cpu)
            workers[side, dtype] = worker
            worker.wait("%d,%d" % args.points[0])
    rows = [row for point in args.points for row in measured(workers, point, args)]
    unit = "labels / CPU s" if args.cpu else "labels/s"
    print(table(["sentences, beam, type", unit + " here", "CTranslate2", "ratio", "asked"], rows))
    for worker in workers.values():
        worker.close()


def measured(workers: dict[tuple[str, str], Worker], point: tuple[int, int], args: argparse.Namespace) -> list[Any]:
    """Time a point in all workers, in turn, and return its rows of the table."""
    what = "%d,%d" % point
    for worker in workers.values():
        worker.wait(what, 1)  # the first one builds the graph
    for _ in range(args.rounds):
        for worker in workers.values():
            worker.run(what)
            found, expected = worker.last["result"], point[0] * args.steps
            if found != expected:
                raise SystemExit("%s found %d labels, not %d" % (worker.name, found, expected))
    rows = []
    for dtype, least in ASKED.items():
        here, other = (workers[side, dtype] for side in ("here", "CTranslate2"))
        ratio = np.median(np.divide(other.times[what], here.times[what]))
        speeds = ["%.0f" % (point[0] * args.steps / worker.median(what)) for worker in (here, other)]
        rows.append(["%d, %d, %s" % (*point, dtype), *speeds, "%.2f" % ratio, "%.1f" % least])
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        serve(lambda: searching(json.loads(sys.argv[2])), warm_up=False)
    else:
        main()
