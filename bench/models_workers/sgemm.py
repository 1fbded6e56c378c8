"""A large product in TensorFlow: the peak of the machine."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
import workers
from model_rows import threads

CUBE = 2048


def make_steps() -> dict[str, Callable[[], Any]]:
    """Return the product as the only step."""
    a, b = (tf.random.normal([CUBE, CUBE]) for _ in range(2))
    product = tf.function(lambda: tf.reduce_max(tf.matmul(a, b)), autograph=False)
    return {"cube": lambda: float(product())}


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    workers.serve(make_steps)
