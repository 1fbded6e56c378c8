"""The native attention and the same with an array of all energies, forward and backward, by CPU time.

    python bench/attention.py [--rounds 7] [--threads 2]

Both take queries, keys and values of all heads as one array, as self_attention does. GFLOP/s count two products forward
and five backward (the energies are computed again), per CPU second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from timing import in_turn, run_cases

from returnn_tf.native.attention import attention_ops, native_attention
from returnn_tf.util.lazy_tf import tf

SIZES = [(4, 200, 8, 64), (2, 800, 8, 64), (1, 1600, 8, 64), (4, 200, 4, 64), (4, 200, 8, 32)]
"""Batch, frames, heads, size of a head."""


def plain(x: Any, size: int, dropout: float, seed: Any) -> Any:
    """Return the values [batch, time, heads, size], computed from an array of all energies."""
    q, k, v = tf.split(x, 3, -1)
    weights = tf.nn.softmax(tf.einsum("bthd,bshd->bhts", q * size**-0.5, k))
    if dropout:
        keep = tf.random.stateless_uniform(tf.shape(weights), seed) >= dropout
        weights = weights * tf.cast(keep, tf.float32) * (1 / (1 - dropout))
    return tf.einsum("bhts,bshd->bthd", weights, v)


def both_passes(attention: Callable[[Any], Any]) -> Any:
    """Return a traced function that computes the result and the gradient."""

    def run(x: Any) -> Any:
        y = attention(x)
        return y, tf.gradients(y, x, grad_ys=y)[0]

    return tf.function(run, autograph=False)


def compare(size: tuple[int, int, int, int], dropout: float, rounds: int) -> list[str]:
    """Return a line of the table."""
    batch, frames, heads, n = size
    x, seed, ops = tf.random.normal([batch, frames, heads, 3 * n]), tf.constant([1, 2]), attention_ops()
    sides = [
        both_passes(lambda x: native_attention(ops, [x], n, scale=n**-0.5, dropout=dropout, seed=seed)),
        both_passes(lambda x: plain(x, n, dropout, seed)),
    ]
    for native, other in zip(sides[0](x), sides[1](x)):
        np.testing.assert_allclose(native, other, rtol=1e-4, atol=1e-5)
    here, there = np.median(in_turn(lambda: sides[0](x), lambda: sides[1](x), rounds, cpu=True), axis=0)
    work = 7 * 2e-9 * batch * heads * frames**2 * n
    name = "%d x %d frames, %d heads of %d, dropout %g" % (*size, dropout)
    return [name, "%.1f" % (1e3 * here), "%.1f" % (1e3 * there), "%.2f" % (here / there), "%.0f" % (work / here)]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    run_cases(
        __doc__,
        ["attention, both passes", "native, CPU ms", "TensorFlow", "ratio", "GFLOP/s"],
        compare,
        [(size, dropout) for size in SIZES for dropout in (0.0, 0.1)],
        arguments,
    )


if __name__ == "__main__":
    main()
