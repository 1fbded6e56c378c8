"""Less common update rules: normalised gradients, learned sign rules, scaling by the variance of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from returnn_tf.config.options import option
from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.util.lazy_tf import tf


@register_optimizer("normalizedsgd")
@dataclass
class NormalizedSgd(Optimizer):
    """``w -= lr * g / |g|`` with the L2 norm over all entries of the parameter."""

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Normalise the gradient, then descend."""
        var.assign_sub(hyper["lr"] * tf.math.l2_normalize(grad))


@register_optimizer("neuraloptimizer1")
@dataclass
class NeuralOptimizer1(Optimizer):
    """Gradient descent with small steps where the sign disagrees with the running mean (after Bello et al. 2017).

    ``m = beta1 m + (1-beta1) g; w -= lr * g * (1 if sign(g) == sign(m) else decrease_factor)``.
    """

    beta1: float = option(0.9, help="decay of the mean")
    decrease_factor: float = option(0.1, help="on the gradient where signs differ")

    def slot_inits(self) -> dict[str, float]:
        """Return the running mean."""
        return {"m": 0.0}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the mean, then the variable."""
        beta1, decrease = like(var, self.beta1, self.decrease_factor)
        m = slots["m"].assign(beta1 * slots["m"] + (1.0 - beta1) * grad)
        factor = tf.where(tf.equal(tf.sign(m), tf.sign(grad)), tf.ones_like(grad), decrease)
        var.assign_sub(hyper["lr"] * grad * factor)


@register_optimizer("gradvariancescaled")
@dataclass
class GradVarianceScaled(Optimizer):
    """Gradient descent with small steps for outliers: ``w -= lr * g * min(v / ((g-m)^2 + epsilon), 1)``.

    m and v are the running mean of the gradient and of its squared deviation, both updated before.
    """

    beta1: float = option(0.9, help="decay of the mean")
    beta2: float = option(0.999, help="decay of the variance")
    epsilon: float = option(DEFAULT_EPSILON, help="added to the squared deviation")

    def slot_inits(self) -> dict[str, float]:
        """Return mean and variance."""
        return {"m": 0.0, "v": 0.0}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the statistics, then the variable."""
        beta1, beta2, epsilon = like(var, self.beta1, self.beta2, self.epsilon)
        m = slots["m"].assign(beta1 * slots["m"] + (1.0 - beta1) * grad)
        deviation = tf.square(grad - m)
        v = slots["v"].assign(beta2 * slots["v"] + (1.0 - beta2) * deviation)
        var.assign_sub(hyper["lr"] * grad * tf.minimum(v / (deviation + epsilon), 1.0))
