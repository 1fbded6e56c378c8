"""The native ops by themselves: recurrences forward and backward, and single sequences."""

from __future__ import annotations

import os
from typing import Any, Callable

import workers
from recurrence_calls import arrays, outputs
from rows import GATES
from sizes import DIM, RECURRENCES, SINGLE, calls, name_of

from returnn_tf.native import gru_ops, lstm_ops
from returnn_tf.util.lazy_tf import tf


def passes(unit: str, frames: int, batch: int, n: int) -> Callable[[], Any]:
    """Return forward and backward, without the gradient of the weights."""
    z, *rest, lengths = arrays(unit, frames, batch, n)
    dh, d_last = tf.ones([frames, batch, n]), tf.zeros([batch, n])

    def lstm() -> None:
        w_re, c0, h0 = rest
        out = lstm_ops(tf.float32).rtf_lstm(z=z, r=w_re, c0=c0, h0=h0, lengths=lengths, reverse=False)
        lstm_ops(tf.float32).rtf_lstm_grad(
            r=w_re, c0=c0, lengths=lengths, c=out.c, gates=out.gates, dh=dh, dc_last=d_last, dh_last=d_last,
            reverse=False,
        )  # fmt: skip

    def gru() -> None:
        weights = dict(zip(("r_gates", "r_candidate", "h0"), rest), lengths=lengths, reverse=False)
        out = gru_ops(tf.float32).rtf_gru(z=z, **weights)
        gru_ops(tf.float32).rtf_gru_grad(h=out.h, gates=out.gates, dh=dh, dh_last=d_last, **weights)

    return {"lstm": lstm, "gru": gru}[unit]


def inference(unit: str, frames: int, n: int) -> Callable[[], Any]:
    """Return a forward step on one sequence; for single frames, one graph with a call of the op for each."""
    z, *rest, lengths = arrays(unit, frames, 1, n)
    x, w, b = (0.1 * tf.random.normal(shape) for shape in ((frames, DIM), (DIM, GATES[unit] * n), (GATES[unit] * n,)))

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        for _ in range(calls(frames)):
            projected = tf.nn.bias_add(tf.matmul(x, w), b)
            h = outputs(unit, tf.reshape(projected, z.shape), *rest, lengths)
            x = x + h[-1, :, :DIM]  # the next call needs this one
        return h

    def without_result() -> None:
        step(x)

    return without_result


def make_steps() -> dict[str, Callable[[], Any]]:
    """Return all steps."""
    steps: dict[str, Callable[[], Any]] = {name_of(*size): passes(*size) for size in RECURRENCES}
    steps.update({"single-" + name_of(unit, frames, 1, n): inference(unit, frames, n) for unit, frames, n in SINGLE})
    return steps


tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["BENCH_THREADS"]))
tf.get_logger().setLevel("ERROR")
workers.serve(make_steps)
