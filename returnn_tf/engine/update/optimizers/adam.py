"""Adam (Kingma and Ba 2015) and its relatives.

``t`` is the number of the application, from 1. The shared step size is ``lr_t = lr * sqrt(1-beta2^t) / (1-beta1^t)``
and epsilon is added outside of the square root: ``w -= lr_t * m / (sqrt(v) + epsilon)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer, adam_arguments, decay_rate, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import AdamRule, AmsGradRule, RAdamRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


@register_optimizer("adam", "customadam")
@dataclass
class Adam(Optimizer):
    """``m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g^2; w -= lr_t m / (sqrt(v) + epsilon)``."""

    switch: ClassVar[str] = "adam"
    beta1: float = option(0.9, help="decay of the mean of the gradient")
    beta2: float = option(0.999, help="decay of the mean of the squared gradient")
    epsilon: float = option(DEFAULT_EPSILON, help="added to the root of the mean square")

    nesterov: ClassVar[bool] = False
    tf1_slots: ClassVar[Mapping[str, str]] = {"m": "Adam", "v": "Adam_1"}

    def slot_inits(self) -> dict[str, float]:
        """Return first and second moment."""
        return {"m": 0.0, "v": 0.0}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return rate and powers of the betas."""
        t = iteration + 1.0
        return {"lr": rate, "beta1_power": self.beta1**t, "beta2_power": self.beta2**t}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return AdamRule(**self._numbers(hyper), nesterov=self.nesterov)

    def _numbers(self, hyper: dict[str, Any]) -> dict[str, Any]:
        powers = {"beta1_power": hyper["beta1_power"], "beta2_power": hyper["beta2_power"]}
        return {"rate": hyper["lr"], **powers, "beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        arguments = adam_arguments(self, grad, var, slots, hyper)
        beta2_power = hyper["beta2_power"]
        tf.raw_ops.ResourceApplyAdam(**arguments, beta2_power=beta2_power, use_nesterov=self.nesterov)

    fused_replaces = update


@register_optimizer("nadam")
@dataclass
class Nadam(Adam):
    """Adam with Nesterov momentum without schedule: the numerator is ``beta1 m + (1-beta1) g`` (Dozat 2016).

    The variant with a momentum schedule is ``nadamkeras``; the flag ``nadam = True`` selects that one.
    """

    nesterov: ClassVar[bool] = True


@register_optimizer("adamw")
@dataclass
class AdamW(Adam):
    """Adam after ``w -= lr * weight_decay * w`` (Loshchilov and Hutter 2019)."""

    weight_decay: float = option(0.004, help="share of each weight which is removed per step, times the learning rate")

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return AdamRule(**self._numbers(hyper), nesterov=self.nesterov, weight_decay=self.weight_decay)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Decay the weights, then apply Adam."""
        var.assign_sub(hyper["lr"] * like(var, self.weight_decay)[0] * var)
        super().update(grad, var, slots, hyper)

    fused_replaces = update


@register_optimizer("amsgrad")
@dataclass
class AmsGrad(Adam):
    """Adam with the largest second moment so far in the denominator (Reddi et al. 2018)."""

    def slot_inits(self) -> dict[str, float]:
        """Return first moment, second moment and its maximum."""
        return {"m": 0.0, "v": 0.0, "vhat": 0.0}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return AmsGradRule(**self._numbers(hyper))

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        arguments = adam_arguments(self, grad, var, slots, hyper)
        beta2_power, vhat = hyper["beta2_power"], slots["vhat"].handle
        tf.raw_ops.ResourceApplyAdamWithAmsgrad(**arguments, beta2_power=beta2_power, vhat=vhat)

    fused_replaces = update


@register_optimizer("radam")
@dataclass
class RAdam(Optimizer):
    """Adam with a step that grows as the variance of its second moment becomes known.

    With ``n = 2 / (1-beta2) - 1`` and ``n_t = n - 2 t beta2^t / (1-beta2^t)``, and the moments m', v' without their
    bias: ``w -= lr r m' / (sqrt(v') + epsilon)`` with ``r^2 = (n_t-4)(n_t-2) n / ((n-4)(n-2) n_t)`` while ``n_t > 4``;
    ``w -= lr m'`` before. Liu et al. 2020, arXiv 1908.03265.
    """

    beta1: float = option(0.9, help="decay of the mean of the gradient", check=decay_rate)
    beta2: float = option(0.999, help="decay of the mean of the squared gradient", check=decay_rate)
    epsilon: float = option(1e-8, help="added to the root of the mean square", check=at_least(0))
    weight_decay: float = option(
        0.0, help="share of each weight which is removed per step, times the learning rate", check=at_least(0)
    )

    def slot_inits(self) -> dict[str, float]:
        """Return first and second moment."""
        return {"m": 0.0, "v": 0.0}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return rate, factors of both moments, and whether (1 or 0) the second one counts."""
        t = iteration + 1.0
        power = self.beta2**t
        longest = 2.0 / (1.0 - self.beta2) - 1.0
        length = longest - 2.0 * t * power / (1.0 - power)
        known = length > 4.0
        least = tf.where(known, length, tf.constant(5.0, "float64"))  # any number for which the root exists
        limit = (longest - 4.0) * (longest - 2.0)  # at most 0 if no length is above 4
        square = (least - 4.0) * (least - 2.0) * longest / (limit * least) if limit > 0 else tf.zeros_like(least)
        return {
            "lr": rate,
            "m_factor": tf.where(known, tf.sqrt(square), 1.0) / (1.0 - self.beta1**t),
            "v_factor": 1.0 / (1.0 - power),
            "adaptive": tf.cast(known, "float64"),
        }

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        factors = (hyper["m_factor"], hyper["v_factor"], hyper["adaptive"])
        return RAdamRule(hyper["lr"], *factors, self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the moments, then the variable."""
        beta1, beta2, epsilon, decay = like(var, self.beta1, self.beta2, self.epsilon, self.weight_decay)
        m = slots["m"].assign_add((1.0 - beta1) * (grad - slots["m"]))
        v = slots["v"].assign_add((1.0 - beta2) * (tf.square(grad) - slots["v"]))
        root = tf.sqrt(hyper["v_factor"] * v) + epsilon
        step = hyper["m_factor"] * m / tf.where(hyper["adaptive"] > 0.0, root, tf.ones_like(root))
        var.assign_sub(hyper["lr"] * (step + decay * var))

    fused_replaces = update
