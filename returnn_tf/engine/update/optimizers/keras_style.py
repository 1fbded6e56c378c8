"""Optimizers with the update rules of Keras: ``sgd``, ``nadamkeras`` and ``adamax``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer, adam_arguments, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import KerasSgdRule, NadamKerasRule, SgdRule, UpdateRule
from returnn_tf.util.lazy_tf import tf

_SCHEDULE_BASE = 0.96  # of the momentum schedule of Nadam
_SCHEDULE_DECAY = 0.004


@dataclass
class KerasStyle(Optimizer):
    """Base of the optimizers which correct the bias of their running means by the update number ``t``.

    By default ``t`` stays at 1, because configs with these optimizers were tuned that way: the moments are then always
    scaled by ``1 / (1 - beta)``. With ``count_updates`` the rules are those of the papers.
    """

    count_updates: bool = option(False, help="let t grow with every update")

    def number(self, iteration: Any) -> Any:
        """Return ``t`` of the current update, float64 scalar."""
        return iteration + 1.0 if self.count_updates else tf.ones_like(iteration)


@register_optimizer("sgd")
@dataclass
class Sgd(Optimizer):
    """``v = momentum * v - lr * g; w += v``; with Nesterov ``w += momentum * v - lr * g``."""

    momentum: float = option(0.0, help="factor on the last change")
    nesterov: bool = option(False, help="look ahead by one step")

    def slot_inits(self) -> dict[str, float]:
        """Return the last change, if momentum is on."""
        return {"momentum": 0.0} if self.momentum else {}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        if not self.momentum:
            return SgdRule(hyper["lr"])
        return KerasSgdRule(hyper["lr"], self.momentum, self.nesterov)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        if not self.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(
                var=var.handle, alpha=hyper["lr"], delta=grad, use_locking=self.use_locking
            )
            return
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=var.handle,
            accum=slots["momentum"].handle,
            lr=hyper["lr"],
            grad=grad,
            momentum=like(var, self.momentum)[0],
            use_locking=self.use_locking,
            use_nesterov=self.nesterov,
        )

    fused_replaces = update


@register_optimizer("nadamkeras")
@dataclass
class NadamKeras(KerasStyle):
    """Nadam (Dozat 2016) with the momentum schedule ``u_t = beta1 * (1 - 0.5 * 0.96^(0.004 t))``.

    With the product P of the ``u`` of all updates and the next one u': ``lr * ((1-u) g / (1-P) + u' m / (1-P u'))``
    over ``sqrt(v / (1-beta2^t)) + epsilon``.
    """

    switch: ClassVar[str] = "nadam"
    beta1: float = option(0.9, help="decay of the mean of the gradient")
    beta2: float = option(0.999, help="decay of the mean of the squared gradient")
    epsilon: float = option(DEFAULT_EPSILON, help="added to the root of the mean square")

    def slot_inits(self) -> dict[str, float]:
        """Return first and second moment."""
        return {"m": 0.0, "v": 0.0}

    def scalar_inits(self) -> dict[str, float]:
        """Return the product of the momentum schedule so far."""
        return {"schedule_product": 1.0}

    def _momentum(self, t: Any) -> Any:
        return self.beta1 * (1.0 - 0.5 * tf.pow(tf.constant(_SCHEDULE_BASE, "float64"), _SCHEDULE_DECAY * t))

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return factors of gradient, first and second moment, and the product of the schedule."""
        t = self.number(iteration)
        now, following = self._momentum(t), self._momentum(t + 1.0)
        product = scalars["schedule_product"] * now
        return {
            "schedule_product": product,
            "grad_factor": rate * (1.0 - now) / (1.0 - product),
            "m_factor": rate * following / (1.0 - product * following),
            "v_factor": 1.0 / (1.0 - self.beta2**t),
        }

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return NadamKerasRule(
            hyper["grad_factor"], hyper["m_factor"], hyper["v_factor"], self.beta1, self.beta2, self.epsilon
        )

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the moments, then the variable."""
        beta1, beta2, epsilon = like(var, self.beta1, self.beta2, self.epsilon)
        m = slots["m"].assign(beta1 * slots["m"] + (1.0 - beta1) * grad)
        v = slots["v"].assign(beta2 * slots["v"] + (1.0 - beta2) * tf.square(grad))
        step = hyper["grad_factor"] * grad + hyper["m_factor"] * m
        var.assign_sub(step / (tf.sqrt(hyper["v_factor"] * v) + epsilon))

    fused_replaces = update


@register_optimizer("adamax")
@dataclass
class Adamax(KerasStyle):
    """Adam with the infinity norm: ``v = max(beta2 v, |g|); w -= lr / (1-beta1^t) * m / (v + epsilon)``."""

    beta1: float = option(0.9, help="decay of the mean of the gradient")
    beta2: float = option(0.999, help="decay of the largest absolute gradient")
    epsilon: float = option(DEFAULT_EPSILON, help="added to that maximum")

    def slot_inits(self) -> dict[str, float]:
        """Return first moment and infinity norm."""
        return {"m": 0.0, "v": 0.0}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return rate and power of beta1."""
        return {"lr": rate, "beta1_power": self.beta1 ** self.number(iteration)}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        tf.raw_ops.ResourceApplyAdaMax(**adam_arguments(self, grad, var, slots, hyper))
