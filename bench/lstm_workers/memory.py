"""What both passes of a native recurrence need in memory, in units of T * B * H floats, beyond their inputs.

The argument is the unit. Measured once, by the first run of the process: freed memory may stay with it.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import workers
from recurrence_calls import arrays, outputs
from sizes import MEMORY

from returnn_tf.util.lazy_tf import tf


def make_steps() -> dict[str, Callable[[], float]]:
    """Return one step, whose result is the figure."""
    unit = sys.argv[1]
    frames, batch, n = MEMORY
    *small, small_lengths = arrays(unit, 2, 1, n)
    *inputs, lengths = arrays(unit, frames, batch, n)
    dh = tf.ones([frames, batch, n])

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None] * len(x.shape)) for x in (*inputs, dh)] + [tf.TensorSpec([None], tf.int32)])  # fmt: skip  # noqa: E501
    def gradients(*args: Any) -> Any:
        *inputs, dh, lengths = args
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            h = outputs(unit, *inputs, lengths)
        return h, tape.gradient(h, inputs, output_gradients=dh)

    gradients(*small, tf.ones([2, 1, n]), small_lengths)
    before = workers.status_mb("VmRSS")
    results = gradients(*inputs, dh, lengths)
    grown = (workers.status_mb("VmHWM") - before) * 2**20 / (4 * frames * batch * n)
    del results
    return {"memory": lambda: grown}


workers.serve(make_steps)
