"""Update rules of optimizers over all parameters in one op, and the norm of all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf

Arrays = list[NDArray[Any]]


def update_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("update", self_test)


def native_update(
    ops: Any, rule: str, variables: Sequence[Any], slots: Sequence[Sequence[Any]], grads: Sequence[Any], numbers: Any
) -> Any:
    """Emit one op that changes all variables and their slots, all float32.

    :param ops: what `update_ops` returned
    :param rule: see ``native_ops/update/update.h``, in lower case and without the prefix
    :param slots: those of each variable, in the order of the rule
    :param numbers: float32 vector: the learning rate, then what the rule takes
    """
    return ops.rtf_update(
        rule=rule,
        vars=[var.handle for var in variables],
        slots=[slot.handle for of_var in slots for slot in of_var],
        grads=list(grads),
        numbers=numbers,
    )


def native_global_norm(ops: Any, grads: Sequence[Any]) -> tf.Tensor:
    """Return the L2 norm over all entries of all gradients, float32 scalar without a gradient; NaN and Inf propagate.

    :param ops: what `update_ops` returned
    """
    return ops.rtf_global_norm(arrays=list(grads))


def _momentum(w: Any, g: Any, s: Arrays, rate: float, momentum: float, nesterov: float) -> tuple[Any, Arrays]:
    s = [momentum * s[0] + g]
    return w - rate * (g + momentum * s[0] if nesterov else s[0]), s


def _keras_sgd(w: Any, g: Any, s: Arrays, rate: float, momentum: float, nesterov: float) -> tuple[Any, Arrays]:
    s = [momentum * s[0] - rate * g]
    return w + (momentum * s[0] - rate * g if nesterov else s[0]), s


def _adam(w: Any, g: Any, s: Arrays, rate: float, p1: float, p2: float, *rest: float) -> tuple[Any, Arrays]:
    beta1, beta2, epsilon, nesterov, decay = (*rest, 0.0, 0.0)[:5]
    m, v = beta1 * s[0] + (1 - beta1) * g, beta2 * s[1] + (1 - beta2) * g * g
    s = [m, v, *(np.maximum(v, x) for x in s[2:])]
    step = beta1 * m + (1 - beta1) * g if nesterov else m
    return w - rate * decay * w - rate * (1 - p2) ** 0.5 / (1 - p1) * step / (np.sqrt(s[-1]) + epsilon), s


def _nadam_keras(w: Any, g: Any, s: Arrays, *numbers: float) -> tuple[Any, Arrays]:
    of_g, of_m, of_v, beta1, beta2, epsilon = numbers
    m, v = beta1 * s[0] + (1 - beta1) * g, beta2 * s[1] + (1 - beta2) * g * g
    return w - (of_g * g + of_m * m) / (np.sqrt(of_v * v) + epsilon), [m, v]


def _rmsprop(w: Any, g: Any, s: Arrays, rate: float, decay: float, momentum: float, eps: float) -> tuple[Any, Arrays]:
    rms = decay * s[0] + (1 - decay) * g * g
    means = [decay * mean + (1 - decay) * g for mean in s[2:]]
    variance = rms - means[0] ** 2 if means else rms
    change = momentum * s[1] + rate * g / np.sqrt(variance + eps)
    return w - change, [rms, change, *means]


def _adagrad(w: Any, g: Any, s: Arrays, rate: float) -> tuple[Any, Arrays]:
    s = [s[0] + g * g]
    return w - rate * g / np.sqrt(s[0]), s


def _adadelta(w: Any, g: Any, s: Arrays, rate: float, rho: float, epsilon: float) -> tuple[Any, Arrays]:
    squares = rho * s[0] + (1 - rho) * g * g
    change = np.sqrt(s[1] + epsilon) / np.sqrt(squares + epsilon) * g
    return w - rate * change, [squares, rho * s[1] + (1 - rho) * change**2]


_FORMULAS: list[tuple[str, Callable[..., tuple[Any, Arrays]], int, tuple[float, ...]]] = [
    ("sgd", lambda w, g, s, rate: (w - rate * g, s), 0, ()),
    ("momentum", _momentum, 1, (0.9, 0)),
    ("momentum", _momentum, 1, (0.9, 1)),
    ("keras_sgd", _keras_sgd, 1, (0.9, 0)),
    ("keras_sgd", _keras_sgd, 1, (0.9, 1)),
    ("adam", _adam, 2, (0.8, 0.9, 0.9, 0.99, 1e-3, 0, 0)),
    ("adam", _adam, 2, (0.8, 0.9, 0.9, 0.99, 1e-3, 1, 0.5)),
    ("amsgrad", _adam, 3, (0.8, 0.9, 0.9, 0.99, 1e-3)),
    ("nadam_keras", _nadam_keras, 2, (0.3, 1.5, 0.9, 0.99, 1e-3)),
    ("rmsprop", _rmsprop, 2, (0.9, 0.5, 1e-3)),
    ("rmsprop_centered", _rmsprop, 3, (0.9, 0.5, 10.0)),
    ("adagrad", _adagrad, 1, ()),
    ("adadelta", _adadelta, 2, (0.9, 1e-3)),
]
"""Rule, its formula, number of slots, numbers after the rate."""


@register_op("update", kernels=("update/update_cpu.cc",), bindings=("update/update_op.cc",))
def self_test(ops: Any) -> None:
    """Compare two steps of each rule, and the norm, with numpy.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    shapes, rate = [(3, 5), (), (41,), (0,)], 0.1
    for rule, formula, n_slots, rest in _FORMULAS:
        values = [rng.normal(0, 1, shape) for shape in shapes]
        slots = [[rng.uniform(0.5, 1, shape) for _ in range(n_slots)] for shape in shapes]
        variables = [tf.Variable(value, dtype=tf.float32) for value in values]
        states = [[tf.Variable(value, dtype=tf.float32) for value in of_one] for of_one in slots]
        for _ in range(2):
            grads = [rng.normal(0, 1, shape) for shape in shapes]
            tensors = [tf.constant(grad, tf.float32) for grad in grads]
            native_update(ops, rule, variables, states, tensors, tf.constant([rate, *rest], tf.float32))
            changed = [formula(w, g, s, rate, *rest) for w, g, s in zip(values, grads, slots)]
            values, slots = [w for w, _ in changed], [s for _, s in changed]
        got = [*variables, *(state for of_one in states for state in of_one)]
        expected = [*values, *(slot for of_one in slots for slot in of_one)]
        if not all(np.allclose(a.numpy(), b, rtol=1e-5, atol=1e-6) for a, b in zip(got, expected)):
            raise NativeOpError("the update %s that was compiled gives wrong results" % rule)
    arrays = [rng.normal(0, 1, size) for size in (7, 20000, 0, 4096)]
    norm = native_global_norm(ops, [tf.constant(array, tf.float32) for array in arrays])
    if not np.allclose(norm, np.sqrt(sum((array**2).sum() for array in arrays)), rtol=1e-6):
        raise NativeOpError("the norm that was compiled gives wrong results")
