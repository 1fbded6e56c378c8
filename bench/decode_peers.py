"""Beam search with a Transformer decoder, here and in CTranslate2: labels per second, in float32 and int8.

    python bench/decode_peers.py --ctranslate2 PYTHON [--points 1,1/16,4] [--rounds N] [--steps N] [--threads N] [--cpu]

PYTHON is one that imports ctranslate2 and numpy. The decoder is that of bench/transformer_search.py: 6 layers (512, 8
heads, feed-forward 2048), 10 000 labels; the encoder, which CTranslate2 cannot do without, has one layer with a small
feed-forward part. A point is a number of sentences of 20 to 30 labels, and a beam. Both have the same random
parameters, no hypothesis ends before the last step, and in float32 both have to find the same labels. Each side and
type runs in a process of its own, in turn; speeds are medians and count the labels of the best hypotheses, ratios are
medians of those within a round.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import transformer_search
from report import table
from workers import Worker, serve

#: type -> what is asked of our speed over theirs
ASKED = {"float32": 1.5, "int8": 1.8}
ENCODER_HIDDEN, EPSILON = 8, 1e-6
POINTS = [(batch, beam) for batch in (1, 16, 64) for beam in (1, 4, 12)]
LABELS = 10000


#: In float32, at least this share of the labels has to agree: where scores tie, either side may take another way.
LEAST_SAME = 0.95


def encoder() -> dict[str, Any]:
    """Return the layers of the encoder: labels, positions, one layer of self-attention and feed-forward, and a norm."""
    t = transformer_search
    linear = {"class": "linear", "activation": None, "with_bias": False, "n_out": t.DIM}
    self_attention = {"class": "self_attention", "num_heads": t.HEADS, "total_key_dim": t.DIM, "n_out": t.DIM}
    return {
        "source_raw": {**linear, "from": "data"},
        "source": {"class": "positional_encoding", "add_to_input": True, "from": "source_raw"},
        "source_self_norm": {"class": "layer_norm", "from": "source"},
        "source_self_att": {**self_attention, "from": "source_self_norm"},
        "source_self_out": {**linear, "from": "source_self_att"},
        "source_self": {"class": "combine", "kind": "add", "from": ["source", "source_self_out"]},
        "source_ff_norm": {"class": "layer_norm", "from": "source_self"},
        "source_ff_hidden": {
            **linear, "activation": "relu", "with_bias": True, "n_out": ENCODER_HIDDEN, "from": "source_ff_norm"
        },
        "source_ff_out": {**linear, "with_bias": True, "from": "source_ff_hidden"},
        "source_ff": {"class": "combine", "kind": "add", "from": ["source_self", "source_ff_out"]},
        "encoder": {"class": "layer_norm", "from": "source_ff"},
    }  # fmt: skip


def sentences(batch: int) -> list[list[int]]:
    """Return the labels of so many sentences."""
    lengths = np.linspace(transformer_search.FRAMES * 2 // 3, transformer_search.FRAMES, batch).astype(int)
    rng = np.random.RandomState(batch)
    return [rng.randint(2, LABELS, length).tolist() for length in lengths]


def asked_of(args: argparse.Namespace, dtype: str, params: str) -> dict[str, Any]:
    """Return what a worker is told: the model, the points, and how to run them.

    :param params: a file that our side writes
    """
    return {
        "model": {"layers": transformer_search.LAYERS, "heads": transformer_search.HEADS, "epsilon": EPSILON},
        "labels": LABELS, "steps": args.steps, "threads": args.threads, "points": args.points, "dtype": dtype,
        "sentences": {batch: sentences(batch) for batch, _ in args.points}, "params": params,
    }  # fmt: skip


def searching(asked: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Write the parameters, and return a search for each point; it returns the best labels of each sentence."""
    from returnn_tf.ops.frames.positions import sinusoids

    @functools.lru_cache(maxsize=1)  # points are in the order of beams
    def net(beam: int) -> Any:
        quantize = None if asked["dtype"] == "float32" else asked["dtype"]
        return transformer_search.searcher(beam, LABELS, asked["steps"], quantize, encoder())

    if asked["dtype"] == "float32":
        positions = sinusoids(np.arange(1000), transformer_search.DIM, "float32").numpy()
        np.savez(asked["params"], positions=positions, **net(asked["points"][0][1]).get_param_values())

    def search(batch: int, beam: int) -> Any:
        lines = asked["sentences"][str(batch)]
        sizes = np.array([len(line) for line in lines], "int32")
        data = np.zeros((batch, sizes.max()), "int32")
        for row, line in zip(data, lines):
            row[: len(line)] = line
        return net(beam).run({"data": data, "data/size0": sizes}).layers["decision"].value.tolist()

    return {"%d,%d" % tuple(point): functools.partial(search, *point) for point in asked["points"]}


def agreement(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> float:
    """Return the share of labels that are the same at the same place."""
    return float(np.mean(np.array(first) == np.array(second)))


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
    with tempfile.TemporaryDirectory() as folder:
        report(args, os.path.join(folder, "params.npz"))


def report(args: argparse.Namespace, params: str) -> None:
    """Measure all points, and print the table.

    :param params: a file for the parameters that both sides have
    """
    workers: dict[tuple[str, str], Worker] = {}
    for dtype in ASKED:
        asked = json.dumps(asked_of(args, dtype, params))
        for side, python, script, options in (
            ("here", sys.executable, "decode_peers.py", ["--worker", asked]),
            ("CTranslate2", args.ctranslate2, "decode_worker_ctranslate2.py", [asked]),
        ):
            worker = Worker("%s, %s" % (side, dtype), python, script, options, args.threads, args.cpu)
            workers[side, dtype] = worker
            worker.wait("%d,%d" % args.points[0])
    rows = [row for point in args.points for row in measured(workers, point, args)]
    unit = "labels / CPU s" if args.cpu else "labels/s"
    print(table(["sentences, beam, type", unit + " here", "CTranslate2", "ratio", "asked", "same labels"], rows))
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
            shape = np.shape(worker.last["result"])
            if shape != (point[0], args.steps):
                raise SystemExit("%s found labels of the shape %s for the point %s" % (worker.name, shape, what))
    rows = []
    for dtype, least in ASKED.items():
        here, other = (workers[side, dtype] for side in ("here", "CTranslate2"))
        same = agreement(here.last["result"], other.last["result"])
        if dtype == "float32" and same < LEAST_SAME:
            raise SystemExit("only %.0f %% of the labels are the same for the point %s" % (100 * same, what))
        ratio = np.median(np.divide(other.times[what], here.times[what]))
        speeds = ["%.0f" % (point[0] * args.steps / worker.median(what)) for worker in (here, other)]
        rows.append(["%d, %d, %s" % (*point, dtype), *speeds, "%.2f" % ratio, "%.1f" % least, "%.2f" % same])
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        serve(lambda: searching(json.loads(sys.argv[2])), warm_up=False)
    else:
        main()
