"""Adafactor: Adam without a first moment, and with the second moment of a matrix as a product of two vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import above, at_least, option
from returnn_tf.engine.update.optimizers.base import Optimizer, Slot, decay_rate, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import AdafactorRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


def _is_negative(value: float) -> Optional[str]:
    return None if value < 0 else "must be below 0"


@register_optimizer("adafactor")
@dataclass
class Adafactor(Optimizer):
    """``u = g / sqrt(v); w -= lr_t max(rms(w), epsilon2) u / max(1, rms(u) / clip_threshold)``.

    v is the mean of ``g^2 + epsilon1``, with the decay ``1 - t^beta2_decay``. Of the last two axes, only its means over
    rows and columns are kept: ``v = row col^T / mean(row)``. ``lr_t`` is the learning rate, with ``relative_step`` at
    most ``1 / sqrt(t)``. Shazeer and Stern 2018, arXiv 1804.04235, where the rate is 0.01.
    """

    beta2_decay: float = option(-0.8, help="exponent in the decay of the mean square", check=_is_negative)
    epsilon1: float = option(1e-30, help="added to the squared gradient", check=at_least(0))
    epsilon2: float = option(1e-3, help="least root mean square of the weights in the step", check=at_least(0))
    clip_threshold: float = option(1.0, help="limit of the root mean square of the direction", check=above(0))
    relative_step: bool = option(True, help="let the learning rate be at most 1 / sqrt(t)")
    scale_parameter: bool = option(True, help="make steps relative to the root mean square of the weights")
    beta1: float = option(
        0.0, help="decay of a mean of the direction, which takes its place; 0: none", check=decay_rate
    )
    weight_decay: float = option(
        0.0, help="share of each weight which is removed per step, times the learning rate", check=at_least(0)
    )

    def slots_of(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Return the mean squares, over rows and columns if there are both, and the mean of the direction."""
        mean = {"m": Slot(shape)} if self.beta1 else {}
        if len(shape) < 2:
            return {"v": Slot(shape), **mean}
        return {"row": Slot(shape[:-1]), "col": Slot((*shape[:-2], shape[-1])), **mean}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rate and the weight of a new square."""
        t = iteration + 1.0
        return {
            "lr": tf.minimum(rate, 1.0 / tf.sqrt(t)) if self.relative_step else rate,
            "new": tf.pow(t, self.beta2_decay),
        }

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all matrices."""
        if self.beta1:
            return None
        numbers = (self.epsilon1, self.epsilon2, self.clip_threshold, self.scale_parameter, self.weight_decay)
        return AdafactorRule(hyper["lr"], hyper["new"], *numbers)

    def fused_for(self, shape: tuple[int, ...]) -> bool:
        """Return whether it is a matrix."""
        return len(shape) == 2

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the mean squares, then the variable."""
        if not var.shape.num_elements():
            return
        square = tf.square(grad)
        threshold, least, beta1, decay = like(var, self.clip_threshold, self.epsilon2, self.beta1, self.weight_decay)
        size, epsilon1 = like(var, var.shape.num_elements(), self.epsilon1)
        # direction: gradient times factors; the sum of its squares: that of the squared gradient times their squares
        if "v" in slots:
            inverse = 1.0 / _averaged(slots["v"], square + epsilon1, hyper["new"])
            factors = [tf.sqrt(inverse)]
            total = tf.reduce_sum(square * inverse)
        else:
            row = _averaged(slots["row"], tf.reduce_mean(square, -1) + epsilon1, hyper["new"])
            col = _averaged(slots["col"], tf.reduce_mean(square, -2) + epsilon1, hyper["new"])
            of_row, of_col = tf.reduce_mean(row, -1, keepdims=True) / row, 1.0 / col
            factors = [tf.sqrt(of_row)[..., None], tf.sqrt(of_col)[..., None, :]]
            total = tf.reduce_sum(of_row * tf.linalg.matvec(square, of_col))
        rate = hyper["lr"]
        if self.scale_parameter:
            rate *= tf.maximum(tf.sqrt(2.0 * tf.nn.l2_loss(var) / size), least)
        rate /= tf.maximum(tf.sqrt(total / size) / threshold, 1.0)
        step = grad
        for factor in [rate * factors[0], *factors[1:]]:
            step *= factor
        if self.beta1:
            step = _averaged(slots["m"], step, 1.0 - beta1)
        if self.weight_decay:
            step += hyper["lr"] * decay * var
        var.assign_sub(step)

    fused_replaces = update


def _averaged(mean: Any, value: Any, weight: Any) -> Any:
    """Update a running mean; return its value."""
    return tf.convert_to_tensor(mean.assign(mean + weight * (value - mean)))
