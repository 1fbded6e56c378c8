"""Gradients of the ops of `returnn_tf.native.fused.activate`, and the gradients of these, for losses on gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf


@dataclass(frozen=True)
class Call:
    """The inputs and attributes of an op RtfActivate, or of its gradient without what only the former has."""

    function: str
    rate: float
    scale: float
    bias: list[Any]
    factors: list[Any]
    residual: list[Any]
    random: list[Any]
    rows: list[Any]

    @classmethod
    def of(cls, op: Any) -> Call:
        """Return those of an op."""
        counts = [op.get_attr(name) for name in ("biases", "column_factors", "randoms", "row_lists")]
        kept = op.get_attr("residuals") if op.type == "RtfActivate" else op.get_attr("kepts")
        inputs = list(op.inputs)[1:]
        if op.type == "RtfActivate":
            sizes = [counts[0], counts[1], kept, counts[2], counts[3]]
            bias, factors, residual, random, rows = _split(inputs, sizes)
        else:
            residual, (_, bias, factors, random, rows) = [], _split(inputs, [kept, *counts])
        attrs = (tf.compat.as_str(op.get_attr("function")), op.get_attr("rate"), op.get_attr("scale"))
        return cls(*attrs, bias, factors, residual, random, rows)

    def again(self, ops: Any, x: Any, residual: Any) -> Any:
        """Emit the op again, with a residual connection."""
        return ops.rtf_activate(
            x=x, bias=self.bias, factors=self.factors, residual=[residual], random=self.random, numbers=self.rows,
            function=self.function, rate=self.rate, scale=self.scale,
        )  # fmt: skip

    @property
    def needs_output_only(self) -> bool:
        """Return whether the derivative of the function is known from the output of the op."""
        if self.residual:
            return False
        return self.function == "relu" or (self.function in ("tanh", "sigmoid") and not self.rate and not self.factors)

    def mask(self, shape: Any) -> Any:
        """Return the factors of columns and dropout, in plain TensorFlow."""
        mask = self.factors[0] if self.factors else tf.ones([])
        if self.rate:
            key, counter = self.random
            whole = shape if not self.rows else [tf.reduce_max(self.rows[0]) + 1, tf.cast(shape[-1], tf.int64)]
            numbers = tf.raw_ops.StatelessRandomUniformV2(shape=whole, key=key, counter=counter, alg=1)
            if self.rows:
                numbers = tf.reshape(tf.gather(numbers, self.rows[0]), shape)
            mask *= tf.cast(numbers >= self.rate, mask.dtype) * self.scale
        return mask


def _split(inputs: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [list(inputs[start : start + size]) for start, size in zip(starts, sizes)]


def value_of(function: str, x: Any) -> Any:
    """Return the value of a function at x, in plain TensorFlow."""
    names = {"relu": tf.nn.relu, "gelu": tf.nn.gelu, "swish": tf.nn.silu, "tanh": tf.tanh, "sigmoid": tf.sigmoid}
    return names.get(function, tf.identity)(x)


def derivative(function: str, x: Any) -> Any:
    """Return the derivative of a function at x, in plain TensorFlow."""
    if function == "relu":
        return tf.cast(x > 0, x.dtype)
    if function == "gelu":
        density = tf.exp(-0.5 * x * x) * (2 * np.pi) ** -0.5
        return 0.5 * (1 + tf.math.erf(x * 0.5**0.5)) + x * density
    if function == "swish":
        s = tf.sigmoid(x)
        return s + x * s * (1 - s)
    if function in ("tanh", "sigmoid"):
        return derivative_of_output(function, tf.tanh(x) if function == "tanh" else tf.sigmoid(x))
    return tf.ones_like(x)


def derivative_of_output(function: str, y: Any) -> Any:
    """Return the derivative of a function, given its value."""
    return {"relu": lambda: tf.cast(y > 0, y.dtype), "tanh": lambda: 1 - y * y, "sigmoid": lambda: y * (1 - y)}[
        function
    ]()


def register_gradients(ops: Any) -> None:
    """Register the gradients of the ops once, and those of the gradients, which are in plain TensorFlow.

    :param ops: the module of the ops of `returnn_tf.native.fused.activate`
    """
    register_once(RtfActivate=partial(_of_activate, ops), RtfActivateGrad=_of_activate_grad)
    register_once(RtfGate=partial(_of_gate, ops), RtfGateGrad=_of_gate_grad)


def _of_activate(ops: Any, op: Any, dy: Any) -> list[Any]:
    call = Call.of(op)
    of_output = call.needs_output_only
    kept = [] if call.function == "identity" else [op.outputs[0] if of_output else op.inputs[0]]
    dbias: Sequence[Any] = []
    if call.function == "identity" and not call.rate and not call.factors:
        dx, dbias = dy, [tf.raw_ops.BiasAddGrad(out_backprop=dy)] if call.bias else []
    else:
        dx, dbias = ops.rtf_activate_grad(
            dy=dy, kept=kept, bias=call.bias, factors=call.factors, random=call.random, numbers=call.rows,
            function=call.function, rate=call.rate, scale=call.scale, of_output=of_output,
        )  # fmt: skip
    rest = [*call.random, *call.rows]
    return [dx, *dbias, *[None for _ in call.factors], *[dy for _ in call.residual], *[None for _ in rest]]


def _of_activate_grad(op: Any, ddx: Any, *ddbias: Any) -> list[Any]:
    call = Call.of(op)
    dy, kept = op.inputs[0], list(op.inputs)[1 : 1 + op.get_attr("kepts")]
    sources = [dy, *kept, *call.bias]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        dx = dy * call.mask(tf.shape(dy))
        if kept and op.get_attr("of_output"):
            dx *= derivative_of_output(call.function, kept[0])
        elif kept:
            dx *= derivative(call.function, kept[0] + (call.bias[0] if call.bias else 0.0))
        loss = tf.reduce_sum(dx * ddx) + sum(tf.reduce_sum(dx * dd) for dd in ddbias)
    found = tape.gradient(loss, sources, unconnected_gradients="zero")
    return [*found, *[None for _ in [*call.factors, *call.random, *call.rows]]]


def _of_gate(ops: Any, op: Any, dy: Any) -> Any:
    return ops.rtf_gate_grad(x=op.inputs[0], dy=dy, value=op.get_attr("value"), gate=op.get_attr("gate"))


def _of_gate_grad(op: Any, ddx: Any) -> Any:
    x, dy = op.inputs
    names = [tf.compat.as_str(op.get_attr(name)) for name in ("value", "gate")]
    with tf.GradientTape() as tape:
        tape.watch([x, dy])
        a, b = tf.split(x, 2, axis=-1)
        (f, df), (g, dg) = ((value_of(name, z), derivative(name, z)) for name, z in zip(names, (a, b)))
        loss = tf.reduce_sum(tf.concat([dy * df * g, dy * f * dg], axis=-1) * ddx)
    return tape.gradient(loss, [x, dy], unconnected_gradients="zero")
