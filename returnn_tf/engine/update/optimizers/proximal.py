"""Optimizers with built-in L1 and L2 terms: FTRL and the proximal variants of gradient descent and Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from returnn_tf.config.options import option
from returnn_tf.engine.update.optimizers.base import Optimizer, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.util.lazy_tf import tf


@register_optimizer("ftrl")
@dataclass
class Ftrl(Optimizer):
    """Follow the regularised leader (McMahan et al. 2013); shrinkage as an L2 penalty on the gradient."""

    learning_rate_power: float = option(-0.5, help="exponent of the sum of squares in the rate; at most 0")
    initial_accumulator_value: float = option(0.1, help="of the sum of squares")
    l1_regularization_strength: float = option(0.0, help="weight of the sum of absolute values")
    l2_regularization_strength: float = option(0.0, help="weight of the sum of squares")
    l2_shrinkage_regularization_strength: float = option(0.0, help="weight of a penalty on the size of the updates")

    def slot_inits(self) -> dict[str, float]:
        """Return the sum of squares and the linear term."""
        return {"accum": self.initial_accumulator_value, "linear": 0.0}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        l1, l2, shrinkage, power = like(
            var,
            self.l1_regularization_strength,
            self.l2_regularization_strength,
            self.l2_shrinkage_regularization_strength,
            self.learning_rate_power,
        )
        kwargs = {
            "var": var.handle,
            "accum": slots["accum"].handle,
            "linear": slots["linear"].handle,
            "grad": grad,
            "lr": hyper["lr"],
            "l1": l1,
            "l2": l2,
            "lr_power": power,
            "use_locking": self.use_locking,
        }
        if self.l2_shrinkage_regularization_strength:
            tf.raw_ops.ResourceApplyFtrlV2(l2_shrinkage=shrinkage, **kwargs)
        else:
            tf.raw_ops.ResourceApplyFtrl(**kwargs)


@register_optimizer("proximalgradientdescent")
@dataclass
class ProximalGradientDescent(Optimizer):
    """Gradient descent, then shrinkage by L1 and L2 (Duchi and Singer 2009)."""

    l1_regularization_strength: float = option(0.0, help="weight of the sum of absolute values")
    l2_regularization_strength: float = option(0.0, help="weight of the sum of squares")

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        l1, l2 = like(var, self.l1_regularization_strength, self.l2_regularization_strength)
        tf.raw_ops.ResourceApplyProximalGradientDescent(
            var=var.handle, alpha=hyper["lr"], l1=l1, l2=l2, delta=grad, use_locking=self.use_locking
        )


@register_optimizer("proximaladagrad")
@dataclass
class ProximalAdagrad(Optimizer):
    """Adagrad, then shrinkage by L1 and L2 at the rate of each weight (Duchi and Singer 2009)."""

    initial_accumulator_value: float = option(0.1, help="of the sum of squares")
    l1_regularization_strength: float = option(0.0, help="weight of the sum of absolute values")
    l2_regularization_strength: float = option(0.0, help="weight of the sum of squares")

    def slot_inits(self) -> dict[str, float]:
        """Return the sum of squares."""
        return {"accumulator": self.initial_accumulator_value}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit one fused kernel."""
        l1, l2 = like(var, self.l1_regularization_strength, self.l2_regularization_strength)
        tf.raw_ops.ResourceApplyProximalAdagrad(
            var=var.handle,
            accum=slots["accumulator"].handle,
            lr=hyper["lr"],
            l1=l1,
            l2=l2,
            grad=grad,
            use_locking=self.use_locking,
        )
