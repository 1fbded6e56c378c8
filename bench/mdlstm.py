"""MDLSTM training on images: the native op and the same recurrence as a loop over anti-diagonals in plain TensorFlow.

    python bench/mdlstm.py [--rounds N] [--rows digits,lines] [--cpu]

For each row forward and backward of the recurrence alone, and a whole step: projection of the input, four directions,
their sum, gradients of all parameters, Adam. Images are ragged: 50 - 100 % of the height and width of the array. Both
sides are compiled functions of this process and compute the same, which is checked first. They are timed in turn, so
that other load on the machine hits both; figures are medians over the rounds, the ratio is that of the medians.
GFLOP/s count the products of the recurrence of valid pixels only: 60 n^2 for each pixel and direction, forward and
backward; the peak is that of a large sgemm of numpy in the same run. Asked: at least 3 times faster.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy  # noqa: E402
from timing import in_turn  # noqa: E402

from returnn_tf.native import mdlstm_ops, native_mdlstm  # noqa: E402
from returnn_tf.ops.mdlstm import GATES, mdlstm  # noqa: E402
from returnn_tf.util.lazy_tf import tf  # noqa: E402

ASKED = 3.0
FLIPS = [(False, False), (True, True), (False, True), (True, False)]

Form = Callable[..., List[Any]]


class Row(NamedTuple):
    """Sizes of a comparison."""

    batch: int
    height: int
    width: int
    features: int
    units: int


ROWS: Dict[str, Row] = {
    "digits": Row(35, 6, 55, 16, 24),  # the first layer of demos/digits/mdlstm.config
    "lines": Row(16, 16, 128, 32, 32),
    "wide": Row(8, 24, 192, 64, 64),
    "single": Row(1, 32, 256, 32, 64),
}


class Problem:
    """Arrays of a row, and what both sides do with them."""

    def __init__(self, row: Row) -> None:
        rng = numpy.random.RandomState(1)
        self.row, n = row, row.units
        self.x = tf.constant(rng.normal(0, 1, (row.batch, row.height, row.width, row.features)), tf.float32)
        heights, widths = (rng.randint(size // 2, size + 1, row.batch) for size in (row.height, row.width))
        heights[0], widths[0] = row.height, row.width
        self.pixels = int((heights * widths).sum())
        self.sizes = tf.constant(heights, tf.int32), tf.constant(widths, tf.int32)
        shapes = [(row.features, GATES * n), (GATES * n,), (n, GATES * n), (n, GATES * n)]
        draws = [[rng.normal(0, 0.1, shape) for _ in FLIPS] for shape in shapes]
        self.params = [[tf.constant(value, tf.float32) for value in group] for group in draws]
        self.z = [tf.constant(rng.normal(0, 1, (*self.x.shape[:3], GATES * n)), tf.float32) for _ in FLIPS]
        self.dh = tf.constant(rng.normal(0, 1, (*self.x.shape[:3], n)), tf.float32)

    def recurrence(self, form: Form) -> Callable[[], Any]:
        """Forward and backward of the recurrence; gradients of its inputs and weights."""
        _, _, left, up = self.params

        @tf.function
        def run() -> Any:
            inputs = [*self.z, *left, *up]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                total = tf.add_n(form(self.z, left, up, *self.sizes, FLIPS))
            return tape.gradient(total, inputs, self.dh)

        return run

    def step(self, form: Form) -> Callable[[], Any]:
        """A whole training step; gives the loss before it."""
        params = [[tf.Variable(value) for value in group] for group in self.params]
        flat = [value for group in params for value in group]
        moments = [[tf.Variable(tf.zeros_like(value)) for value in flat] for _ in range(2)]

        @tf.function
        def run() -> Any:
            with tf.GradientTape() as tape:
                w, b, left, up = params
                x = tf.reshape(self.x, [-1, self.row.features])
                shape = [*self.x.shape[:3], w[0].shape[1]]
                z = [tf.reshape(tf.nn.bias_add(tf.matmul(x, w_k), b_k), shape) for w_k, b_k in zip(w, b)]
                values = [[tf.convert_to_tensor(v) for v in group] for group in (left, up)]
                loss = tf.reduce_mean(tf.square(tf.add_n(form(z, *values, *self.sizes, FLIPS)) - self.dh))
            for value, first, second, gradient in zip(flat, *moments, tape.gradient(loss, flat)):
                tf.raw_ops.ResourceApplyAdam(
                    var=value.handle, m=first.handle, v=second.handle, beta1_power=0.9, beta2_power=0.999, lr=1e-3,
                    beta1=0.9, beta2=0.999, epsilon=1e-8, grad=gradient,
                )  # fmt: skip
            return loss

        return run


def sgemm_gflops(size: int = 2048) -> float:
    """The peak of this machine, as numpy's library reaches it."""
    a, b = (numpy.random.RandomState(i).rand(size, size).astype("float32") for i in range(2))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        numpy.dot(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def compare(name: str, what: str, sides: List[Callable[[], Any]], rounds: int, cpu: bool, gflop: float) -> None:
    """Prints a line."""
    for _ in range(2):  # the first call compiles
        values = [tf.nest.flatten(side()) for side in sides]
        for one, other in zip(*values):
            numpy.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * numpy.abs(other).max())
    times = in_turn(sides[0], sides[1], rounds, cpu=cpu)
    native, plain = numpy.median(times, axis=0)
    note = "" if plain / native >= ASKED else "  below the limit"
    print(
        "%-8s %-12s %9.1f %9.1f %7.1f %7.1f %9.1f%s"
        % (name, what, 1e3 * native, 1e3 * plain, plain / native, ASKED, gflop / native, note)
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed runs of each side")
    parser.add_argument("--rows", default=",".join(ROWS), help="which of: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds instead: for a machine with other load")
    args = parser.parse_args()
    ops = mdlstm_ops()
    if ops is None:
        raise SystemExit("the native op cannot be used here")

    def native(*inputs: Any) -> List[Any]:
        return native_mdlstm(ops, *inputs)

    header = ("row", "what", "native ms", "plain ms", "ratio", "asked", "GFLOP/s")
    print("sgemm peak: %.0f GFLOP/s" % sgemm_gflops())
    print("%-8s %-12s %9s %9s %7s %7s %9s" % header)
    for name in args.rows.split(","):
        problem = Problem(ROWS[name])
        gflop = 60e-9 * problem.row.units**2 * problem.pixels * len(FLIPS)
        for what, make in (("recurrence", problem.recurrence), ("whole step", problem.step)):
            compare(name, what, [make(native), make(mdlstm)], args.rounds, args.cpu, gflop)


if __name__ == "__main__":
    main()
