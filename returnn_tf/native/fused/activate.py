"""What follows a product, in one pass over memory: bias, activation, dropout, residual connection; and gated units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.fused.activate_gradients import register_gradients
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf

#: Names of activations in configs -> functions of the op.
FUNCTIONS = {
    None: "identity", "identity": "identity", "none": "identity", "linear": "identity", "relu": "relu", "gelu": "gelu",
    "swish": "swish", "silu": "swish", "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip


def activate_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("activate", self_test)


@dataclass(frozen=True)
class Dropout:
    """Dropout of each entry by its own random number: that of `tf.random.stateless_uniform` for the seed.

    :param rate: probability of 0, below 1
    :param seed: int [2]
    :param rows: numbers of the rows, all axes but the last one, if they are some of a larger tensor, int64 [rows]
    """

    rate: float
    seed: Any
    rows: Optional[Any] = None


def native_activate(
    ops: Any,
    x: tf.Tensor,
    *,
    function: str = "identity",
    bias: Optional[tf.Tensor] = None,
    factors: Optional[tf.Tensor] = None,
    dropout: Optional[Dropout] = None,
    residual: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Compute ``residual + dropout(factors * function(x + bias))``, in float32.

    :param ops: what `activate_ops` returned
    :param x: [..., width]
    :param function: one of the values of `FUNCTIONS`
    :param bias: [width]
    :param factors: [width], not negative; have no gradient
    :param residual: of the shape of ``x``
    """
    register_gradients(ops)
    random: list[tf.Tensor] = []
    if dropout is not None:
        random = list(tf.raw_ops.StatelessRandomGetKeyCounter(seed=dropout.seed))
    rate = 0.0 if dropout is None else dropout.rate
    return ops.rtf_activate(
        x=x, bias=_listed(bias), factors=_listed(factors), residual=_listed(residual), random=random,
        numbers=_listed(None if dropout is None else dropout.rows), function=function, rate=rate,
        scale=1.0 / (1.0 - rate),
    )  # fmt: skip


def native_gate(ops: Any, x: tf.Tensor, value: str, gate: str) -> tf.Tensor:
    """Compute ``value(a) * gate(b)`` with a and b the halves of the last axis, in float32.

    :param ops: what `activate_ops` returned
    :param x: [..., 2 * width]
    :param value: one of the values of `FUNCTIONS`, as is ``gate``
    """
    register_gradients(ops)
    return ops.rtf_gate(x=x, value=value, gate=gate)


def _listed(x: Optional[tf.Tensor]) -> list[tf.Tensor]:
    return [] if x is None else [x]


@register_op(
    "activate",
    kernels=("activate/activate_cpu.cc",),
    bindings=("activate/activate_op.cc",),
    cuda=("activate/activate_cuda.cu",),
    twice_differentiable=True,
)
def self_test(ops: Any) -> None:
    """Compare with numpy, and the dropout with TensorFlow's random numbers.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    rows, width, dropout = 37, 21, Dropout(0.3, tf.constant([5, 2**40 + 3], tf.int64))
    x, bias, residual = (rng.normal(0, 1, shape) for shape in ((rows, width), width, (rows, width)))
    factors, taken = rng.uniform(0, 1, width), np.array([3, 4, 36, 0])
    numbers = tf.random.stateless_uniform((rows, width), dropout.seed)
    keep = tf.cast(numbers >= dropout.rate, tf.float32).numpy() / (1 - dropout.rate)
    for function in sorted(set(FUNCTIONS.values())):

        def op(x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor) -> list[tf.Tensor]:
            plain = native_activate(ops, x, function=function, bias=bias)  # noqa: B023
            scaled = tf.constant(factors, tf.float32)
            options = {"bias": bias, "factors": scaled, "dropout": dropout, "residual": residual}
            whole = native_activate(ops, x, function=function, **options)  # noqa: B023
            gated = native_gate(ops, tf.concat([x, residual], axis=-1), function, "sigmoid")  # noqa: B023
            some = native_activate(ops, tf.gather(plain, taken), dropout=Dropout(dropout.rate, dropout.seed, taken))
            return [plain, native_activate(ops, plain, dropout=dropout), whole, gated, some]

        def formula(x: NDArray[Any], bias: NDArray[Any], residual: NDArray[Any]) -> list[NDArray[Any]]:
            y = _formula(function, x + bias)  # noqa: B023
            gated = _formula(function, x) * _formula("sigmoid", residual)  # noqa: B023
            return [y, y * keep, residual + y * factors * keep, gated, (y * keep)[taken]]

        compare("activation %s" % function, op, formula, [x, bias, residual])


def _formula(function: str, x: NDArray[Any]) -> NDArray[Any]:
    if function == "gelu":
        erf: NDArray[Any] = tf.math.erf(tf.constant(x * 0.5**0.5, tf.float64)).numpy()
        return 0.5 * x * (1 + erf)
    sigmoid = 1 / (1 + np.exp(-x))
    values = {"relu": np.maximum(x, 0), "swish": x * sigmoid, "tanh": np.tanh(x), "sigmoid": sigmoid}
    y: NDArray[Any] = values.get(function, x)
    return y
