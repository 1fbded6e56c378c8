"""Steps of a row of ``bench/mdlstm.py``: forward and backward of the recurrence alone, and a whole training step.

python bench/mdlstm_worker.py ROW native|rounded|plain
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

import numpy as np
from mdlstm_rows import FLIPS, ROWS, Row
from workers import serve

from returnn_tf.native import mdlstm_ops, native_mdlstm
from returnn_tf.ops.dense.mdlstm import GATES, mdlstm
from returnn_tf.util.lazy_tf import tf

Form = Callable[..., list[Any]]


class Problem:
    """Arrays of a row, and what a form of the MDLSTM does with them."""

    def __init__(self, row: Row) -> None:
        rng = np.random.RandomState(1)
        self.row, n = row, row.units
        self.x = tf.constant(rng.normal(0, 1, (row.batch, row.height, row.width, row.features)), tf.float32)
        self.sizes = [tf.constant(sizes) for sizes in row.sizes()]
        shapes = [(row.features, GATES * n), (GATES * n,), (n, GATES * n), (n, GATES * n)]
        draws = [[rng.normal(0, 0.1, shape) for _ in FLIPS] for shape in shapes]
        self.params = [[tf.constant(value, tf.float32) for value in group] for group in draws]
        self.z = [tf.constant(rng.normal(0, 1, (*self.x.shape[:3], GATES * n)), tf.float32) for _ in FLIPS]
        self.dh = tf.constant(rng.normal(0, 1, (*self.x.shape[:3], n)), tf.float32)

    def recurrence(self, form: Form) -> Callable[[], float]:
        """Run the recurrence forward and backward, with gradients of inputs and weights; return a mean of them."""
        _, _, left, up = self.params

        @tf.function
        def run() -> Any:
            inputs = [*self.z, *left, *up]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                total = tf.add_n(form(self.z, left, up, *self.sizes, FLIPS))
            gradients = tape.gradient(total, inputs, self.dh)
            return tf.add_n([tf.norm(x) for x in gradients[len(FLIPS) :]]) + gradients[0][0, 0, 0, 0]

        return lambda: float(run())

    def step(self, form: Form) -> Callable[[], float]:
        """Run a whole training step; return the loss before it."""
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

        return lambda: float(run())


def make_steps() -> dict[str, Callable[[], float]]:
    """Return both steps of the row and form that the command line names."""
    row, which = sys.argv[1:3]
    form: Form = mdlstm
    if which in ("native", "rounded"):
        ops = mdlstm_ops()
        if ops is None:
            raise SystemExit("the native op cannot be used here")

        def form(*inputs: Any) -> list[Any]:
            return native_mdlstm(ops, *inputs, rounded=which == "rounded")

    problem = Problem(ROWS[row])
    return {"recurrence": problem.recurrence(form), "step": problem.step(form)}


tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["BENCH_THREADS"]))
tf.zeros(())  # what TensorFlow needs for itself is no part of what the steps need
serve(make_steps)
