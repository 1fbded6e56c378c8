"""Several products with one source, against one product with the weights side by side, forward and backward, CPU time.

    python bench/shared_source.py [--rounds 9] [--threads 2]

``joined`` puts the weights of each step side by side, splits the result, and joins its gradients. ``no parts`` leaves
result and gradient one array, so it is a bound: what one could save if neither cost a copy. Ratios are to separate
products, medians over the rounds, in which the sides take turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from timing import run_cases

from returnn_tf.util.lazy_tf import tf

#: Frames, features of the source, features of each product, number of products.
SIZES = [
    (100, 512, 512, 3), (400, 512, 512, 3), (1600, 512, 512, 3), (3200, 512, 512, 3), (1600, 256, 256, 3),
    (400, 64, 64, 3), (3200, 512, 512, 2), (1600, 123, 1280, 2), (1600, 1000, 2000, 2),
]  # fmt: skip
SIDES = ("separate", "joined", "no parts")


def make_step(side: str, frames: int, n_in: int, n_out: int, count: int) -> Callable[[], Any]:
    """Return a step: products with bias, and the gradients of source, weights and biases."""
    rng = np.random.RandomState(1)
    variables = [tf.Variable(rng.normal(0, 0.05, (n_in, n_out)), dtype=tf.float32) for _ in range(count)]
    biases = [tf.Variable(tf.zeros([n_out])) for _ in range(count)]
    x = tf.constant(rng.normal(size=(frames, n_in)), tf.float32)
    dy = tf.constant(rng.normal(size=(frames, count * n_out)), tf.float32)
    parts = tf.split(dy, count, axis=1)

    def run(x: Any, dy: Any, *parts: Any) -> Any:
        weights, offsets = ([tf.convert_to_tensor(var) for var in group] for group in (variables, biases))
        if side == "separate":
            ys = [tf.nn.bias_add(tf.matmul(x, w), b) for w, b in zip(weights, offsets)]
        else:
            y = tf.nn.bias_add(tf.matmul(x, tf.concat(weights, 1)), tf.concat(offsets, 0))
            ys = [y] if side == "no parts" else tf.split(y, count, axis=1)
        grads = [dy] if side == "no parts" else list(parts)
        return ys, tf.gradients(ys, [x, *weights, *offsets], grad_ys=grads)

    step = tf.function(run, autograph=False)
    return lambda: step(x, dy, *parts)


def compare(size: tuple[int, int, int, int], rounds: int) -> list[str]:
    """Return a line of the table."""
    frames, n_in, n_out, count = size
    steps = [make_step(side, *size) for side in SIDES]
    repeat = max(1, int(1e9 / (6 * frames * n_in * n_out * count)))
    times = np.zeros((rounds + 1, len(steps)))
    for times_of_round in times:
        for side, step in enumerate(steps):
            start = time.process_time()
            for _ in range(repeat):
                step()
            times_of_round[side] = (time.process_time() - start) / repeat
    times = times[1:]
    ratios = np.median(times / times[:, :1], axis=0)
    name = "%d frames, %d to %d x %d" % (frames, n_in, count, n_out)
    return [name, "%.2f" % (1e3 * np.median(times[:, 0])), "%.2f" % ratios[1], "%.2f" % ratios[2]]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    run_cases(
        __doc__,
        ["products of one source, both passes", "separate, CPU ms", *SIDES[1:]],
        compare,
        [(size,) for size in SIZES],
        arguments,
        rounds=9,
    )


if __name__ == "__main__":
    main()
