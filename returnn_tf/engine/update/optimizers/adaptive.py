"""Optimizers with a rate per weight derived from past squared gradients: Adagrad, Adadelta, RMSProp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import AdadeltaRule, AdagradRule, CenteredRmsPropRule, RmsPropRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


@register_optimizer("adagrad")
@dataclass
class Adagrad(Optimizer):
    """``a += g^2; w -= lr * g / sqrt(a)`` (Duchi et al. 2011)."""

    switch: ClassVar[str] = "adagrad"
    initial_accumulator_value: float = option(0.1, help="of the sum of squares; keeps the first steps small")

    def slot_inits(self) -> dict[str, float]:
        """Return the sum of squares."""
        return {"accumulator": self.initial_accumulator_value}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return AdagradRule(hyper["lr"])

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        tf.raw_ops.ResourceApplyAdagrad(
            var=var.handle,
            accum=slots["accumulator"].handle,
            lr=hyper["lr"],
            grad=grad,
            use_locking=self.use_locking,
            update_slots=True,
        )

    fused_replaces = update


@register_optimizer("adadelta")
@dataclass
class Adadelta(Optimizer):
    """``a = rho a + (1-rho) g^2; d = g sqrt(u + eps) / sqrt(a + eps); u = rho u + (1-rho) d^2; w -= lr d``.

    Zeiler 2012.
    """

    switch: ClassVar[str] = "adadelta"
    rho: float = option(0.95, help="decay of both means of squares")
    epsilon: float = option(DEFAULT_EPSILON, help="inside of both roots")

    tf1_slots: ClassVar[Mapping[str, str]] = {"rms": "RMSProp", "momentum": "RMSProp_1"}

    def slot_inits(self) -> dict[str, float]:
        """Return mean squares of gradients and changes."""
        return {"accum": 0.0, "accum_update": 0.0}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return AdadeltaRule(hyper["lr"], self.rho, self.epsilon)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        rho, epsilon = like(var, self.rho, self.epsilon)
        tf.raw_ops.ResourceApplyAdadelta(
            var=var.handle,
            accum=slots["accum"].handle,
            accum_update=slots["accum_update"].handle,
            lr=hyper["lr"],
            rho=rho,
            epsilon=epsilon,
            grad=grad,
            use_locking=self.use_locking,
        )

    fused_replaces = update


@register_optimizer("rmsprop")
@dataclass
class RmsProp(Optimizer):
    """``s = decay s + (1-decay) g^2; d = momentum d + lr g / sqrt(s + epsilon); w -= d``.

    ``centered`` subtracts the square of the mean gradient from ``s`` inside of the root.
    """

    switch: ClassVar[str] = "rmsprop"
    decay: float = option(0.9, help="of the mean square and the mean")
    momentum: float = option(0.0, help="factor on the last change")
    epsilon: float = option(DEFAULT_EPSILON, help="inside of the root")
    centered: bool = option(False, help="normalise by the variance instead of the mean square")

    tf1_slots: ClassVar[Mapping[str, str]] = {"rms": "RMSProp", "momentum": "RMSProp_1"}

    def slot_inits(self) -> dict[str, float]:
        """Return mean square (starts at one), last change and, if centered, mean."""
        slots = {"rms": 1.0, "momentum": 0.0}
        if self.centered:
            slots["mean"] = 0.0
        return slots

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        rule = CenteredRmsPropRule if self.centered else RmsPropRule
        return rule(hyper["lr"], self.decay, self.momentum, self.epsilon)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        rho, momentum, epsilon = like(var, self.decay, self.momentum, self.epsilon)
        kwargs = {
            "var": var.handle,
            "ms": slots["rms"].handle,
            "mom": slots["momentum"].handle,
            "lr": hyper["lr"],
            "rho": rho,
            "momentum": momentum,
            "epsilon": epsilon,
            "grad": grad,
            "use_locking": self.use_locking,
        }
        if self.centered:
            tf.raw_ops.ResourceApplyCenteredRMSProp(mg=slots["mean"].handle, **kwargs)
        else:
            tf.raw_ops.ResourceApplyRMSProp(**kwargs)

    fused_replaces = update
