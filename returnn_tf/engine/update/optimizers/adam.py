"""Adam (Kingma and Ba 2015) and its relatives.

``t`` is the number of the application, from 1. The shared step size is ``lr_t = lr * sqrt(1-beta2^t) / (1-beta1^t)``
and epsilon is added outside of the square root: ``w -= lr_t * m / (sqrt(v) + epsilon)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer, adam_arguments, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import AdamRule, AmsGradRule, UpdateRule
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

    def hyper(self, rate: Any, iteration: Any, scalars: dict[str, Any]) -> dict[str, Any]:
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
