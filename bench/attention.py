"""The native attention and the same with an array of all energies, forward and backward, by CPU time.

    python bench/attention.py [--rounds 7] [--threads 2]

Both take queries, keys and values of all heads as one array, as self_attention does. In bfloat16 the factors of
products are rounded: in the op, or by conversions before TensorFlow's products. GFLOP/s count two products forward and
five backward (the energies are computed again), per CPU second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from timing import in_turn, run_cases

from returnn_tf.native.attention import attention_ops, native_attention
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.util.lazy_tf import tf

SIZES = [(4, 200, 8, 64), (2, 800, 8, 64), (1, 1600, 8, 64), (4, 200, 4, 64), (4, 200, 8, 32)]
"""Batch, frames, heads, size of a head."""


def plain(x: Any, size: int, dropout: float, seed: Any, low: Optional[str]) -> Any:
    """Return the values [batch, time, heads, size], computed from an array of all energies."""

    def product(equation: str, *factors: Any) -> Any:
        return full(tf.einsum(equation, *(reduced(factor, low) for factor in factors)), low)

    q, k, v = tf.split(x, 3, -1)
    weights = tf.nn.softmax(product("bthd,bshd->bhts", q * size**-0.5, k))
    if dropout:
        keep = tf.random.stateless_uniform(tf.shape(weights), seed) >= dropout
        weights = weights * tf.cast(keep, tf.float32) * (1 / (1 - dropout))
    return product("bhts,bshd->bthd", weights, v)


def both_passes(attention: Callable[[Any], Any]) -> Any:
    """Return a traced function that computes the result and the gradient."""

    def run(x: Any) -> Any:
        y = attention(x)
        return y, tf.gradients(y, x, grad_ys=y)[0]

    return tf.function(run, autograph=False)


def compare(size: tuple[int, int, int, int], dropout: float, low: Optional[str], rounds: int) -> list[str]:
    """Return a line of the table."""
    batch, frames, heads, n = size
    x, seed, ops = tf.random.normal([batch, frames, heads, 3 * n]), tf.constant([1, 2]), attention_ops()
    sides = [
        both_passes(
            lambda x: native_attention(ops, [x], n, scale=n**-0.5, dropout=dropout, seed=seed, rounded=low is not None)
        ),
        both_passes(lambda x: plain(x, n, dropout, seed, low)),
    ]
    digits = {"rtol": 1e-4, "atol": 1e-5} if low is None else {"rtol": 0.1, "atol": 0.1}
    for native, other in zip(sides[0](x), sides[1](x)):
        np.testing.assert_allclose(native, other, **digits)
    here, there = np.median(in_turn(lambda: sides[0](x), lambda: sides[1](x), rounds, cpu=True), axis=0)
    work = 7 * 2e-9 * batch * heads * frames**2 * n
    name = "%d x %d frames, %d heads of %d, dropout %g, %s" % (*size, dropout, low or "float32")
    return [name, "%.1f" % (1e3 * here), "%.1f" % (1e3 * there), "%.2f" % (here / there), "%.0f" % (work / here)]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    run_cases(
        __doc__,
        ["attention, both passes", "native, CPU ms", "TensorFlow", "ratio", "GFLOP/s"],
        compare,
        [(size, dropout, low) for size in SIZES for dropout in (0.0, 0.1) for low in (None, "bfloat16")],
        arguments,
    )


if __name__ == "__main__":
    main()
