"""Beam search with a Transformer decoder: this checkout against another one, and the time per label over the length.

    python bench/transformer_search.py [--against CHECKOUT] [--quantize TYPE] [--rounds N] [--beam K] [--batch N]

A decoder of 6 layers (512, 8 heads, feed-forward 2048) over 30 encoder frames; no hypothesis ends before the last of
100 labels. Each side runs in a process of its own, in turn. The speed counts the labels of the best hypotheses; both
sides must find the same ones with the same scores. The growth is the time of the second half of the labels over that of
the first one: 1 if nothing is recomputed or copied with the history, 3 where all of the time is. A thread that sleeps
in a step has to be woken. With --quantize alone, the other side is the same search with matrices of that type; with
--against too, both sides have matrices of that type.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Callable, Optional

import numpy as np
from workers import HERE, Worker, serve

ASKED, ASKED_OF_INT8 = 3.0, 1.6
LAYERS, DIM, HEADS, HIDDEN, FRAMES = 6, 512, 8, 2048, 30


def network(beam: int, labels: int, steps: int, layers: int = LAYERS, dim: int = DIM) -> dict[str, Any]:
    """Return the network dict, as configs write it."""

    def linear(source: str, **options: Any) -> dict[str, Any]:
        return {"class": "linear", "activation": None, "with_bias": False, "n_out": dim, "from": source, **options}

    size = dim // HEADS
    heads = {"class": "split_dims", "axis": "F", "dims": (HEADS, size)}
    net: dict[str, Any] = {"encoder": linear("data")}
    unit: dict[str, Any] = {
        "end": {"class": "compare", "from": "output", "value": 0},
        "embed_raw": linear("prev:output", initial_output=0),
        "embed": {"class": "positional_encoding", "add_to_input": True, "from": "embed_raw"},
        "decoder": {"class": "layer_norm", "from": "ff%d" % layers},
        "prob": {"class": "softmax", "from": "decoder", "target": "classes", "loss": "ce"},
        "output": {"class": "choice", "target": "classes", "beam_size": beam, "from": "prob", "initial_output": 0},
    }
    last = "embed"
    for i in range(1, layers + 1):
        net["key%d" % i] = {**heads, "from": "key%d_flat" % i}
        net["value%d" % i] = {**heads, "from": "value%d_flat" % i}
        net["key%d_flat" % i], net["value%d_flat" % i] = linear("encoder"), linear("encoder")
        part = {
            "self_norm": {"class": "layer_norm", "from": last},
            "self_att": {"class": "self_attention", "num_heads": HEADS, "total_key_dim": dim, "n_out": dim,
                         "from": "self_norm#", "attention_left_only": True},
            "self_out": linear("self_att#"),
            "self": {"class": "combine", "kind": "add", "from": [last, "self_out#"]},
            "cross_norm": {"class": "layer_norm", "from": "self#"},
            "query_flat": linear("cross_norm#"),
            "query": {**heads, "from": "query_flat#"},
            "energy": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T?",
                       "from": ["base:key%d" % i, "query#"]},
            "weights": {"class": "softmax_over_spatial", "energy_factor": size**-0.5, "from": "energy#"},
            "context": {"class": "generic_attention", "weights": "weights#", "base": "base:value%d" % i},
            "cross_att": {"class": "merge_dims", "axes": ["dim:%d" % HEADS, "dim:%d" % size], "from": "context#"},
            "cross_out": linear("cross_att#"),
            "cross": {"class": "combine", "kind": "add", "from": ["self#", "cross_out#"]},
            "ff_norm": {"class": "layer_norm", "from": "cross#"},
            "ff_hidden": linear("ff_norm#", activation="relu", with_bias=True, n_out=HIDDEN * dim // DIM),
            "ff_out": linear("ff_hidden#", with_bias=True),
            "ff": {"class": "combine", "kind": "add", "from": ["cross#", "ff_out#"]},
        }  # fmt: skip
        numbered = {"%s%d" % (name, i): options for name, options in part.items()}
        unit.update(json.loads(json.dumps(numbered).replace("#", str(i))))
        last = "ff%d" % i
    net["output"] = {"class": "rec", "from": [], "target": "classes", "max_seq_len": steps, "unit": unit}
    net["decision"] = {"class": "decide", "from": "output", "is_output_layer": True}
    return net


def sources(batch: int) -> dict[str, np.ndarray]:
    """Return the input of so many sentences, the last of `FRAMES` frames."""
    data = {"data": np.random.RandomState(1).normal(size=(batch, FRAMES, DIM)).astype("float32")}
    data["data/size0"] = np.linspace(FRAMES * 2 // 3, FRAMES, batch).astype("int32")
    return data


def searcher(beam: int, labels: int, steps: int, quantize: Optional[str], encoder: Any = None, **sizes: int) -> Any:
    """Return the `Network` in search, with random parameters, in which no hypothesis ends before the last step.

    :param encoder: layers that make "encoder" of labels, in place of a linear layer of vectors
    :param sizes: of the decoder, see `network`
    """
    import returnn_tf

    source = {"dim": DIM} if encoder is None else {"dim": labels, "sparse": True}
    config = returnn_tf.Config({
        "extern_data": {"data": source, "classes": {"dim": labels, "sparse": True}},
        "network": {**network(beam, labels, steps, **sizes), **(encoder or {})},
        "behavior_version": 21,
        "quantize": quantize,
    })  # fmt: skip
    net = returnn_tf.Network.from_config(config, search=True)
    values = np.random.RandomState(3)
    params = {
        key: values.normal(0, 1.0 / np.sqrt(p.shape[0]), p.shape).astype("float32")
        for key, p in sorted(net.params.items())
    }
    params.update({key: np.ones_like(value) for key, value in params.items() if key.endswith("/scale")})
    params["output/rec/prob/W"] *= 3.0  # about as sure of its labels as a trained model
    params["output/rec/prob/b"][0] = -100.0  # no hypothesis ends
    net.set_param_values(params)
    return net


def searching(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Search over half and over all of the steps; return labels and scores of the last search."""
    data = sources(args.batch)
    searches: dict[str, Callable[[], Any]] = {}
    for name, steps in (("half", args.steps // 2), ("all", args.steps)):
        net = searcher(args.beam, args.labels, steps, args.quantize)

        def run(net: Any = net) -> Any:
            found = net.run(data).layers
            return [found["decision"].value.tolist(), found["output"].beam_scores.tolist()]

        searches[name] = run
    return searches


def sentences_alike(first: Any, second: Any) -> int:
    """Return the number of sentences with the same best labels; raise if the scores of the beams differ."""
    np.testing.assert_allclose(first[1], second[1], rtol=1e-5)
    return sum(labels == other for labels, other in zip(first[0], second[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", help="another checkout of this project; it has to find the same")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--labels", type=int, default=10000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds: for a machine with other load")
    parser.add_argument("--quantize", choices=["int8", "bfloat16"], help="type of the matrices")
    parser.add_argument("--worker", metavar="CHECKOUT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sys.path.insert(0, args.worker)
        serve(lambda: searching(args))
        return
    report(args)


def report(args: argparse.Namespace) -> None:
    """Print the speeds."""
    here = os.path.dirname(HERE)
    quantized = ["--quantize", args.quantize] if args.quantize else []
    sides: dict[str, list[str]] = {"here": [here, *quantized]}
    if args.against:
        sides["other"] = [args.against, *quantized]
    elif args.quantize:
        sides = {args.quantize: [here, *quantized], "float32": [here]}
    workers = []
    for name, side in sides.items():
        options = [arg for key in ("beam", "batch", "labels", "steps") for arg in ("--" + key, str(getattr(args, key)))]
        options += ["--worker", *side]
        workers.append(Worker(name, sys.executable, "transformer_search.py", options, args.threads, args.cpu))
        workers[-1].wait()
    results: list[Any] = []
    for _ in range(args.rounds):
        for what in ("half", "all"):
            for worker in workers:
                worker.run(what)
        results = [worker.last["result"] for worker in workers]
    titles = ("search", "ms a label", "label/s", "growth", "memory", "sleeps a step")
    print("%-8s %12s %12s %8s %12s %14s" % titles)
    for worker in workers:
        half, full = worker.median("half"), worker.median("all")
        speed = args.batch * args.steps / full
        ms = 1e3 * full / args.steps
        grown = worker.last["grown_mb"]
        sleeps = worker.last["sleeps"] / (worker.steps("all") * args.steps)
        figures = (worker.name, ms, speed, (full - half) / half, grown, sleeps)
        print("%-8s %12.1f %12.1f %8.2f %9.0f MB %14.1f" % figures)
    if len(workers) == 2:
        ratios = [b / a for a, b in zip(workers[0].times["all"], workers[1].times["all"])]
        print("ratio %.2f, asked >= %.1f" % (float(np.median(ratios)), ASKED if args.against else ASKED_OF_INT8))
        if args.against:
            same = sentences_alike(*results)
            print("same scores; %d of %d best hypotheses have the same labels, the others tie" % (same, args.batch))
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
