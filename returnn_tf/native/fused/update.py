"""Update rules of optimizers over all parameters in one op, and the norm of all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Callable, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf

#: Entries of all parameters below which a network is so small that compiling the ops takes longer than it ever saves.
LEAST_SIZE = 200_000

Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class UpdateRule:
    """Rule of the native op. Its fields are the numbers that the rule takes, in the order of `RtfRule`, as scalars.

    The rules are in ``native_ops/update/update.h``; ``name`` is theirs, in lower case and without the prefix.
    """

    name: ClassVar[str]
    #: what the rule sums within a parameter, "entries" or "rows and columns"; "": a number depends on its own entry
    #: only. Rules of a kind have the same launches on a GPU, and their time is that of reading and writing memory.
    sums: ClassVar[str] = ""

    def numbers(self, factor: Any = 1.0) -> Any:
        """Return the factor of all gradients and the numbers of the rule, float32 vector."""
        return tf.stack(
            [tf.cast(x, tf.float32) for x in (factor, *(getattr(self, field.name) for field in fields(self)))]
        )


@dataclass(frozen=True)
class SgdRule(UpdateRule):
    """``w -= rate g``."""

    name: ClassVar[str] = "sgd"
    rate: Any


@dataclass(frozen=True)
class MomentumRule(UpdateRule):
    """Momentum with the rate outside of the running sum."""

    name: ClassVar[str] = "momentum"
    rate: Any
    momentum: float
    nesterov: bool


@dataclass(frozen=True)
class KerasSgdRule(UpdateRule):
    """Momentum with the rate inside of the running sum."""

    name: ClassVar[str] = "keras_sgd"
    rate: Any
    momentum: float
    nesterov: bool


@dataclass(frozen=True)
class AdamRule(UpdateRule):
    """Adam, with Nesterov momentum or decoupled weight decay."""

    name: ClassVar[str] = "adam"
    rate: Any
    beta1_power: Any
    beta2_power: Any
    beta1: float
    beta2: float
    epsilon: float
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AmsGradRule(UpdateRule):
    """Adam with the largest second moment so far."""

    name: ClassVar[str] = "amsgrad"
    rate: Any
    beta1_power: Any
    beta2_power: Any
    beta1: float
    beta2: float
    epsilon: float


@dataclass(frozen=True)
class NadamKerasRule(UpdateRule):
    """Nadam with a momentum schedule; the rate is in the factors."""

    name: ClassVar[str] = "nadam_keras"
    grad_factor: Any
    m_factor: Any
    v_factor: Any
    beta1: float
    beta2: float
    epsilon: float


@dataclass(frozen=True)
class RmsPropRule(UpdateRule):
    """Gradient over the root of its mean square."""

    name: ClassVar[str] = "rmsprop"
    rate: Any
    decay: float
    momentum: float
    epsilon: float


@dataclass(frozen=True)
class CenteredRmsPropRule(RmsPropRule):
    """Gradient over its standard deviation."""

    name: ClassVar[str] = "rmsprop_centered"


@dataclass(frozen=True)
class AdagradRule(UpdateRule):
    """Gradient over the root of the sum of its squares."""

    name: ClassVar[str] = "adagrad"
    rate: Any


@dataclass(frozen=True)
class AdadeltaRule(UpdateRule):
    """Gradient over the root of its mean square, times that of the changes."""

    name: ClassVar[str] = "adadelta"
    rate: Any
    rho: float
    epsilon: float


@dataclass(frozen=True)
class RAdamRule(UpdateRule):
    """Adam with the second moment only once its variance is known."""

    name: ClassVar[str] = "radam"
    rate: Any
    m_factor: Any
    v_factor: Any
    adaptive: Any
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


@dataclass(frozen=True)
class LionRule(UpdateRule):
    """Sign of a mixture of momentum and gradient."""

    name: ClassVar[str] = "lion"
    rate: Any
    beta1: float
    beta2: float
    weight_decay: float


@dataclass(frozen=True)
class ScheduleFreeRule(UpdateRule):
    """AdamW for a sequence that is averaged."""

    name: ClassVar[str] = "schedule_free"
    rate: Any
    weight: Any
    v_factor: Any
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


@dataclass(frozen=True)
class AverageRule(UpdateRule):
    """Moving average: ``w += rate (g - w)``, of values in the place of gradients."""

    name: ClassVar[str] = "average"
    rate: Any


@dataclass(frozen=True)
class LambRule(UpdateRule):
    """Adam with steps as large as the norm of each parameter."""

    name: ClassVar[str] = "lamb"
    sums: ClassVar[str] = "entries"
    rate: Any
    m_factor: Any
    v_factor: Any
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


@dataclass(frozen=True)
class ScaledAdamRule(UpdateRule):
    """Adam with steps relative to the size of each parameter."""

    name: ClassVar[str] = "scaled_adam"
    sums: ClassVar[str] = "entries"
    rate: Any
    beta1: float
    beta2: float
    epsilon: float
    scale_rate: float
    min_rms: float


@dataclass(frozen=True)
class AdafactorRule(UpdateRule):
    """Gradient of a matrix over the root of mean squares of rows and columns; slots are these."""

    name: ClassVar[str] = "adafactor"
    sums: ClassVar[str] = "rows and columns"
    rate: Any
    weight: Any
    epsilon1: float
    epsilon2: float
    threshold: float
    scaled: bool
    weight_decay: float


def update_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("update", self_test)


def native_update(
    ops: Any,
    rule: UpdateRule,
    variables: Sequence[Any],
    slots: Sequence[Sequence[Any]],
    grads: Sequence[Any],
    when: Any = True,
    factor: Any = 1.0,
) -> Any:
    """Emit one op that changes all variables and their slots, all float32.

    :param ops: what `update_ops` returned
    :param slots: those of each variable, in the order of the rule
    :param when: bool scalar; if it is false, nothing changes
    :param factor: scalar, of all gradients
    """
    return ops.rtf_update(
        rule=rule.name,
        vars=[var.handle for var in variables],
        slots=[slot.handle for of_var in slots for slot in of_var],
        grads=list(grads),
        numbers=rule.numbers(factor),
        when=when,
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


def _radam(w: Any, g: Any, s: Arrays, *numbers: float) -> tuple[Any, Arrays]:
    rate, of_m, of_v, adaptive, beta1, beta2, epsilon, decay = numbers
    m, v = beta1 * s[0] + (1 - beta1) * g, beta2 * s[1] + (1 - beta2) * g * g
    return w - rate * (of_m * m / (np.sqrt(of_v * v) + epsilon if adaptive else 1) + decay * w), [m, v]


def _lion(w: Any, g: Any, s: Arrays, rate: float, beta1: float, beta2: float, decay: float) -> tuple[Any, Arrays]:
    step = np.sign(beta1 * s[0] + (1 - beta1) * g) + decay * w
    return w - rate * step, [beta2 * s[0] + (1 - beta2) * g]


def _schedule_free(w: Any, g: Any, s: Arrays, *numbers: float) -> tuple[Any, Arrays]:
    rate, weight, of_v, beta1, beta2, epsilon, decay = numbers
    v = beta2 * s[1] + (1 - beta2) * g * g
    z, x = w + s[0], w + s[0] - s[0] / beta1
    z = z - rate * (g / (np.sqrt(of_v * v) + epsilon) + decay * w)
    x = (1 - weight) * x + weight * z
    w = (1 - beta1) * z + beta1 * x
    return w, [z - w, v]


def _lamb(w: Any, g: Any, s: Arrays, *numbers: float) -> tuple[Any, Arrays]:
    rate, of_m, of_v, beta1, beta2, epsilon, decay = numbers
    m, v = beta1 * s[0] + (1 - beta1) * g, beta2 * s[1] + (1 - beta2) * g * g
    step = of_m * m / (np.sqrt(of_v * v) + epsilon) + decay * w
    ratio = np.sqrt((w**2).sum() / (step**2).sum()) if np.size(w) else 1.0
    return w - rate * ratio * step, [m, v]


def _scaled_adam(w: Any, g: Any, s: Arrays, *numbers: float) -> tuple[Any, Arrays]:
    rate, beta1, beta2, epsilon, scale_rate, least = numbers
    if not np.size(w):
        return w, s
    slope = (g * w).sum()
    s = [mean + (1 - beta) * (value - mean) for mean, beta, value in zip(
        s, (beta1, beta2, beta1, beta2), (g, g * g, slope, slope**2))]  # fmt: skip
    step, of_scale = s[0] / (np.sqrt(s[1]) + epsilon), s[2] / (np.sqrt(s[3]) + epsilon)
    if np.size(w) == 1:
        return w - rate * scale_rate * step, s
    return w - rate * (max(np.sqrt((w**2).mean()), least) * step + scale_rate * of_scale * w), s


def _adafactor(w: Any, g: Any, s: Arrays, *numbers: float) -> tuple[Any, Arrays]:
    rate, weight, epsilon1, epsilon2, threshold, scaled, decay = numbers
    if not np.size(w):
        return w, s
    row = s[0] + weight * ((g**2).mean(1) + epsilon1 - s[0])
    col = s[1] + weight * ((g**2).mean(0) + epsilon1 - s[1])
    step = g / np.sqrt(np.outer(row / row.mean(), col))
    size = max(np.sqrt((w**2).mean()), epsilon2) if scaled else 1.0
    step = step * size / max(1.0, np.sqrt((step**2).mean()) / threshold)
    return w - rate * step - rate * decay * w, [row, col]


Shape = tuple[int, ...]


def _like(count: int) -> Callable[[Shape], list[Shape]]:
    """Return the shapes of so many slots like the parameter."""
    return lambda shape: count * [shape]


_FORMULAS: list[tuple[UpdateRule, Callable[..., tuple[Any, Arrays]], Callable[[Shape], list[Shape]]]] = [
    (SgdRule(0.1), lambda w, g, s, rate: (w - rate * g, s), _like(0)),
    (MomentumRule(0.1, 0.9, nesterov=False), _momentum, _like(1)),
    (MomentumRule(0.1, 0.9, nesterov=True), _momentum, _like(1)),
    (KerasSgdRule(0.1, 0.9, nesterov=False), _keras_sgd, _like(1)),
    (KerasSgdRule(0.1, 0.9, nesterov=True), _keras_sgd, _like(1)),
    (AdamRule(0.1, 0.8, 0.9, 0.9, 0.99, 1e-3), _adam, _like(2)),
    (AdamRule(0.1, 0.8, 0.9, 0.9, 0.99, 1e-3, nesterov=True, weight_decay=0.5), _adam, _like(2)),
    (AmsGradRule(0.1, 0.8, 0.9, 0.9, 0.99, 1e-3), _adam, _like(3)),
    (NadamKerasRule(0.1, 0.3, 1.5, 0.9, 0.99, 1e-3), _nadam_keras, _like(2)),
    (RmsPropRule(0.1, 0.9, 0.5, 1e-3), _rmsprop, _like(2)),
    (CenteredRmsPropRule(0.1, 0.9, 0.5, 10.0), _rmsprop, _like(3)),
    (AdagradRule(0.1), _adagrad, _like(1)),
    (AdadeltaRule(0.1, 0.9, 1e-3), _adadelta, _like(2)),
    (RAdamRule(0.1, 0.6, 1.2, 1.0, 0.9, 0.99, 1e-3, 0.5), _radam, _like(2)),
    (RAdamRule(0.1, 0.6, 1.2, 0.0, 0.9, 0.99, 1e-3, 0.5), _radam, _like(2)),
    (LionRule(0.1, 0.9, 0.99, 0.5), _lion, _like(1)),
    (ScheduleFreeRule(0.1, 0.3, 1.2, 0.9, 0.99, 1e-3, 0.5), _schedule_free, _like(2)),
    (AverageRule(0.1), lambda w, g, s, rate: (w + rate * (g - w), s), _like(0)),
    (LambRule(0.1, 1.5, 1.2, 0.9, 0.99, 1e-3, 0.5), _lamb, _like(2)),
    (ScaledAdamRule(0.1, 0.9, 0.99, 1e-3, 0.1, 1e-3), _scaled_adam, lambda shape: [shape, shape, (), ()]),
    (AdafactorRule(0.1, 0.3, 1e-3, 1e-3, 0.8, True, 0.5), _adafactor, lambda shape: [shape[:1], shape[1:]]),
    (AdafactorRule(0.1, 0.3, 1e-3, 1e-3, 9.0, False, 0.0), _adafactor, lambda shape: [shape[:1], shape[1:]]),
]
"""Rule, its formula, shapes of the slots of a parameter."""
_SHAPES: list[Shape] = [(3, 5), (), (41,), (0,)]
_MATRICES: list[Shape] = [(3, 5), (300, 441), (0, 2), (7, 0)]


@register_op(
    "update",
    kernels=("update/update_cpu.cc",),
    bindings=("update/update_op.cc",),
    cuda=("update/update_cuda.cu",),
    capability=(7, 0),
)
def self_test(ops: Any) -> None:
    """Compare two steps of each rule, and the norm, with numpy.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    for rule, formula, slots_of in _FORMULAS:
        shapes = _MATRICES if isinstance(rule, AdafactorRule) else _SHAPES
        values = [rng.normal(0, 1, shape) for shape in shapes]
        slots = [[rng.uniform(0.5, 1, of_slot) for of_slot in slots_of(shape)] for shape in shapes]
        variables = [tf.Variable(value, dtype=tf.float32) for value in values]
        states = [[tf.Variable(value, dtype=tf.float32) for value in of_one] for of_one in slots]
        for _ in range(2):
            grads = [rng.normal(0, 1, shape) for shape in shapes]
            tensors = [tf.constant(2.0 * grad, tf.float32) for grad in grads]
            native_update(ops, rule, variables, states, tensors, factor=0.5)
            changed = [formula(w, g, s, *vars(rule).values()) for w, g, s in zip(values, grads, slots)]
            values, slots = [w for w, _ in changed], [s for _, s in changed]
        got = [*variables, *(state for of_one in states for state in of_one)]
        expected = [*values, *(slot for of_one in slots for slot in of_one)]
        if not all(np.allclose(a.numpy(), b, rtol=1e-5, atol=1e-6) for a, b in zip(got, expected)):
            raise NativeOpError("the update %s that was compiled gives wrong results" % rule.name)
    arrays = [rng.normal(0, 1, size) for size in (7, 20000, 0, 4096)]
    norm = native_global_norm(ops, [tf.constant(array, tf.float32) for array in arrays])
    if not np.allclose(norm, np.sqrt(sum((array**2).sum() for array in arrays)), rtol=1e-6):
        raise NativeOpError("the norm that was compiled gives wrong results")
