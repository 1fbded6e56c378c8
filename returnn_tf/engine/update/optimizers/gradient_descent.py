"""Plain gradient descent and gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.update.optimizers.base import Optimizer, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import MomentumRule, SgdRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


@register_optimizer("gradientdescent", "customgradientdescent")
@dataclass
class GradientDescent(Optimizer):
    """``w -= lr * g``."""

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return SgdRule(hyper["lr"])

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        del slots
        tf.raw_ops.ResourceApplyGradientDescent(
            var=var.handle, alpha=hyper["lr"], delta=grad, use_locking=self.use_locking
        )

    fused_replaces = update


@register_optimizer("momentum")
@dataclass
class Momentum(Optimizer):
    """``a = momentum * a + g; w -= lr * a``; with Nesterov ``w -= lr * (g + momentum * a)`` (Sutskever et al. 2013)."""

    momentum: float = option(0.0, help="factor on the accumulated gradient; usually 0.9")
    use_nesterov: bool = option(False, help="look ahead by one step")

    tf1_slots: ClassVar[Mapping[str, str]] = {"momentum": "Momentum"}

    def slot_inits(self) -> dict[str, float]:
        """Return the decaying sum of the gradients."""
        return {"momentum": 0.0}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return MomentumRule(hyper["lr"], self.momentum, self.use_nesterov)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        (momentum,) = like(var, self.momentum)
        tf.raw_ops.ResourceApplyMomentum(
            var=var.handle,
            accum=slots["momentum"].handle,
            lr=hyper["lr"],
            grad=grad,
            momentum=momentum,
            use_locking=self.use_locking,
            use_nesterov=self.use_nesterov,
        )

    fused_replaces = update
