"""The ops that do in one pass what several of TensorFlow do, against those: after products, normalisation, convolution,
update.

    python bench/fused.py [--only norm] [--rounds 10] [--cpu]

Both sides run in one process in turn; times are medians over the rounds, in milliseconds. What is beside a product is
timed forward and backward for 16 sequences of 200 frames; the update for the parameters of a Conformer (6 x 256), with
the norm of all gradients.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any, Callable

import numpy as np
from timing import in_turn

from returnn_tf.engine.update.gradients import fused_global_norm
from returnn_tf.engine.update.optimizers import create_optimizer
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops import after_product
from returnn_tf.ops.dense.convolution import convolution
from returnn_tf.ops.normalize import batch_norm, layer_norm
from returnn_tf.util.lazy_tf import tf

ROWS = 3200
OPTIMIZERS = (
    {"class": "adam"}, {"class": "adamw"}, {"class": "nadamkeras"}, {"class": "momentum", "momentum": 0.9},
    {"class": "radam"}, {"class": "lion"}, {"class": "lamb"}, {"class": "scaledadam"}, {"class": "schedulefreeadamw"},
    {"class": "adafactor"},
)  # fmt: skip
_ATTENTION = [(256, 768), (256, 256), (256, 512), (512,), (32, 1, 256), (256, 256), *[(256,)] * 20]
CONFORMER = 6 * (_ATTENTION + 2 * [(256, 1024), (1024,), (1024, 256)])


def _after_product(activation: Any, rate: float) -> Callable[..., Any]:
    seed = tf.Variable([1, 2], dtype=tf.int64)  # of a constant one, TensorFlow would draw the numbers only once

    def block(x: Any, bias: Any, residual: Any) -> Any:
        y = after_product.bias_and_activation(x, bias, activation)
        y = after_product.dropout(y, rate, tf.convert_to_tensor(seed)) if rate else y
        return y if activation else after_product.add(residual, y)

    return block


def _batch_norm(x: Any, bias: Any, residual: Any) -> Any:
    y, _, _ = batch_norm(x, tf.fill([ROWS, 1], True), bias, bias, 1e-3)
    return after_product.bias_and_activation(y, None, "swish")


def _depthwise(x: Any, bias: Any, residual: Any) -> Any:
    frames = tf.reshape(x, [16, -1, x.shape[-1]])
    w = bias + 0.01 * tf.range(31, dtype=tf.float32)[:, None, None]
    options: dict[str, Any] = {"groups": x.shape[-1], "padding": ["same"], "train": True}
    return tf.reshape(convolution(frames, w, bias=bias, **options), x.shape)


#: Name, width, function of x, bias and an array like x.
BLOCKS: list[tuple[str, int, Callable[..., Any]]] = [
    ("bias, relu", 2048, _after_product("relu", 0.0)),
    ("bias, relu, dropout", 2048, _after_product("relu", 0.1)),
    ("bias, swish, dropout", 2048, _after_product("swish", 0.1)),
    ("bias, gelu, dropout", 2048, _after_product("gelu", 0.1)),
    ("bias, dropout, residual", 512, _after_product(None, 0.1)),
    ("layer norm", 512, lambda x, bias, residual: layer_norm(x + residual, bias, bias, 1e-6)),
    ("batch norm, swish", 512, _batch_norm),
    ("depthwise, bias", 512, _depthwise),
]


def _of_block(function: Callable[..., Any], width: int, plain: bool) -> Callable[[], Any]:
    rng = np.random.RandomState(1)
    shapes = ((ROWS, width), (width,), (ROWS, width))
    arrays = [tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in shapes]

    def step(*inputs: Any) -> Any:
        with portable_ops() if plain else contextlib.nullcontext():
            y = function(*inputs)
            return [y, *tf.gradients(y, inputs, grad_ys=inputs[2], unconnected_gradients="zero")]

    compiled = tf.function(step, autograph=False)
    return lambda: compiled(*arrays)


def _of_update(options: dict[str, Any], plain: bool) -> Callable[[], Any]:
    rng = np.random.RandomState(1)
    variables = {str(i): tf.Variable(rng.normal(0, 0.1, s), dtype=tf.float32) for i, s in enumerate(CONFORMER)}
    grads = [tf.constant(rng.normal(0, 0.01, shape), tf.float32) for shape in CONFORMER]
    optimizer = create_optimizer(dict(options), where="optimizer")
    optimizer.build(variables, "all")

    def step(*grads: Any) -> Any:
        with portable_ops() if plain else contextlib.nullcontext():
            norm = fused_global_norm(grads)
            optimizer.apply([(name, grad, variables[name]) for name, grad in zip(variables, grads)], 1e-4)
            return norm

    compiled = tf.function(step, autograph=False)
    return lambda: compiled(*grads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads: for a machine with other load")
    args = parser.parse_args()
    cases = {name: [_of_block(function, n, plain) for plain in (True, False)] for name, n, function in BLOCKS}
    for options in OPTIMIZERS:
        cases["update by %s" % options["class"]] = [_of_update(options, plain) for plain in (True, False)]
    print("%-26s %10s %10s %7s" % ("milliseconds", "TensorFlow", "fused", "ratio"))
    for name, (plain, fused) in cases.items():
        if args.only not in name:
            continue
        times = 1e3 * in_turn(plain, fused, args.rounds + 1, cpu=args.cpu)[1:]
        ratio = np.median(times[:, 1] / times[:, 0])
        print("%-26s %10.2f %10.2f %7.2f" % (name, *np.median(times, axis=0), ratio), flush=True)


if __name__ == "__main__":
    main()
