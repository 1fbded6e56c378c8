"""Matrix-valued recurrences: the native ops against their forms in TensorFlow, products of the frames of a chunk.

    python bench/matrix_scan.py [--frames 500] [--batch 4] [--rounds 5] [--cpu]

Heads, keys and values are those of units with n_out 512. Both forms have the same inputs and take turns, forward, and
forward and backward together; "ratio" is the median of the native op's time divided by that of the other form.
GFLOP/s counts what the op multiplies and adds: for each number of the state 5 operations in a frame, 9 with the delta
rule, and as many in each of the three passes of its gradient.

With ``--cpu`` times are CPU seconds of all threads: for a machine with other load.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

import numpy as np
from report import table
from timing import in_turn

from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.cells.matrix.chunkwise import chunkwise
from returnn_tf.ops.cells.matrix.delta_rule import delta_rule
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.util.lazy_tf import tf

#: Name, heads, keys, values, decays of a frame, whether it is the delta rule.
CASES = [
    ("gla", 4, 64, 128, 64, False),
    ("mamba2", 16, 128, 64, 1, False),
    ("mlstm", 4, 128, 129, 1, False),
    ("rwkv6", 8, 64, 64, 64, False),
    ("rwkv7", 8, 64, 64, 64, True),
]


def inputs(case: Any, frames: int, batch: int) -> dict[str, Any]:
    """Return random inputs; the delta rule removes what the same key reads."""
    _, heads, keys, values, decays, delta = case
    rng, shape = np.random.default_rng(1), (frames, batch, heads)
    arrays = {name: rng.normal(0, 0.3, (*shape, d)) for name, d in (("r", keys), ("k", keys), ("v", values))}
    arrays["log_decay"] = -0.5 * rng.uniform(size=(*shape, decays))
    arrays["state"] = rng.normal(size=(batch, heads, keys, values))
    if delta:
        removed = rng.normal(size=(*shape, keys))
        arrays["b"] = removed / np.linalg.norm(removed, axis=-1, keepdims=True)
        arrays["a"] = -arrays["b"]
    return {name: tf.constant(x, tf.float32) for name, x in arrays.items()}


def run(x: dict[str, Any]) -> Any:
    """Return the outputs and the last state."""
    if "a" in x:
        return delta_rule(
            HeadFrames(**{k: v for k, v in x.items() if k != "state"}), x["state"], lengths=None, chunk=32
        )
    return chunkwise(x["r"], x["k"], x["v"], x["log_decay"], x["state"])


def compiled(x: dict[str, Any], *, train: bool, portable: bool) -> Callable[[], Any]:
    """Return one of the forms as a function without arguments."""

    @tf.function(autograph=False)
    def step(x: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = run(x)
            loss = tf.add_n([tf.reduce_sum(part) for part in results])
        return tape.gradient(loss, x) if train else results

    if portable:
        with portable_ops():
            step.get_concrete_function(x)
    return lambda: [part.numpy() for part in tf.nest.flatten(step(x))]


def compare(args: argparse.Namespace) -> list[list[Any]]:
    """Measure a row for each case."""
    rows = []
    for case in CASES:
        x = inputs(case, args.frames, args.batch)
        name, heads, keys, values, _, delta = case
        operations = args.frames * args.batch * heads * keys * values * (9 if delta else 5)
        row: list[Any] = [name]
        for train in (False, True):
            sides = [compiled(x, train=train, portable=portable) for portable in (False, True)]
            for side in sides:
                side()
            times = in_turn(sides[0], sides[1], args.rounds, cpu=args.cpu)
            native, plain = np.median(times, axis=0)
            speed = (4 if train else 1) * operations / 1e9 / native
            ratio = np.median(times[:, 0] / times[:, 1])
            row += ["%.3g" % (1e3 * native), "%.3g" % (1e3 * plain), "%.2f" % ratio, "%.0f" % speed]
        rows.append(row)
    return rows


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    columns = ["ms", "in chunks", "ratio", "GFLOP/s"]
    print(table(["unit", *("forward " + c for c in columns), *("training " + c for c in columns)], compare(args)))


if __name__ == "__main__":
    main()
