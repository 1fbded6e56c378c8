"""Adam with steps relative to the size of each parameter: LAMB and ScaledAdam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import above, at_least, option
from returnn_tf.engine.update.optimizers.base import Optimizer, Slot, decay_rate, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import LambRule, ScaledAdamRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


@register_optimizer("lamb")
@dataclass
class Lamb(Optimizer):
    """``u = m' / (sqrt(v') + epsilon) + weight_decay w; w -= lr |w| / |u| u``, for training with large batches.

    m' and v' are the means of gradient and squared gradient, without their bias; the norms are over all entries of a
    parameter, and where one of them is 0, the step is ``lr u``. You et al. 2020, arXiv 1904.00962.
    """

    beta1: float = option(0.9, help="decay of the mean of the gradient", check=decay_rate)
    beta2: float = option(0.999, help="decay of the mean of the squared gradient", check=decay_rate)
    epsilon: float = option(1e-6, help="added to the root of the mean square", check=at_least(0))
    weight_decay: float = option(0.01, help="weight of the parameter in the direction", check=at_least(0))

    def slot_inits(self) -> dict[str, float]:
        """Return first and second moment."""
        return {"m": 0.0, "v": 0.0}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rate and what removes the bias of the moments."""
        t = iteration + 1.0
        return {"lr": rate, "m_factor": 1.0 / (1.0 - self.beta1**t), "v_factor": 1.0 / (1.0 - self.beta2**t)}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        factors = (hyper["m_factor"], hyper["v_factor"])
        return LambRule(hyper["lr"], *factors, self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the moments, then the variable."""
        beta1, beta2, epsilon, decay = like(var, self.beta1, self.beta2, self.epsilon, self.weight_decay)
        m, v = _moments(grad, slots, beta1, beta2)
        step = hyper["m_factor"] * m / (tf.sqrt(hyper["v_factor"] * v) + epsilon) + decay * var
        size, of_step = tf.norm(var), tf.norm(step)
        ratio = tf.where((size > 0.0) & (of_step > 0.0), tf.math.divide_no_nan(size, of_step), tf.ones_like(size))
        var.assign_sub(hyper["lr"] * ratio * step)

    fused_replaces = update


@register_optimizer("scaledadam")
@dataclass
class ScaledAdam(Optimizer):
    """Adam whose steps are relative to the root mean square r of a parameter, and that learns r as well.

    With the step size ``lr_t = lr sqrt(1-beta2^t) / (1-beta1^t)`` and the gradient ``h`` of log r, the sum of ``g w``:

        w -= lr_t max(r, min_rms) m / (sqrt(v) + epsilon) + scale_rate lr_t n / (sqrt(q) + epsilon) w

    where m, n are the means of g, h and v, q those of their squares. A parameter that is one number is its own scale:
    ``w -= scale_rate lr_t m / (sqrt(v) + epsilon)``. Yao et al. 2023, arXiv 2310.11230.
    """

    beta1: float = option(0.9, help="decay of the means of the gradients", check=decay_rate)
    beta2: float = option(0.98, help="decay of the means of the squared gradients", check=decay_rate)
    epsilon: float = option(1e-8, help="added to the roots of the mean squares", check=at_least(0))
    scale_rate: float = option(0.1, help="factor on the learning rate of the scales", check=at_least(0))
    min_rms: float = option(1e-5, help="least root mean square in the step, so that zeros can change", check=above(0))

    def slots_of(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Return the moments of the gradient of the parameter, and of that of its scale."""
        return {"m": Slot(shape), "v": Slot(shape), "scale_m": Slot(()), "scale_v": Slot(())}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the step size."""
        t = iteration + 1.0
        return {"lr": rate * tf.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return ScaledAdamRule(hyper["lr"], self.beta1, self.beta2, self.epsilon, self.scale_rate, self.min_rms)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update all moments, then the variable."""
        if not var.shape.num_elements():
            return
        beta1, beta2, epsilon = like(var, self.beta1, self.beta2, self.epsilon)
        scale_rate, min_rms = like(var, self.scale_rate, self.min_rms)
        of_scale = {"m": slots["scale_m"], "v": slots["scale_v"]}
        m, v = _moments(grad, slots, beta1, beta2)
        n, q = _moments(tf.reduce_sum(grad * var), of_scale, beta1, beta2)
        change = m / (tf.sqrt(v) + epsilon)
        if var.shape.num_elements() == 1:
            var.assign_sub(hyper["lr"] * scale_rate * change)
            return
        rms = tf.maximum(tf.sqrt(tf.reduce_mean(tf.square(var))), min_rms)
        var.assign_sub(hyper["lr"] * (rms * change + scale_rate * n / (tf.sqrt(q) + epsilon) * var))

    fused_replaces = update


def _moments(grad: Any, slots: dict[str, Any], beta1: Any, beta2: Any) -> tuple[Any, Any]:
    """Update the slots m and v; return their values."""
    m = slots["m"].assign_add((1.0 - beta1) * (grad - slots["m"]))
    v = slots["v"].assign_add((1.0 - beta2) * (tf.square(grad) - slots["v"]))
    return tf.convert_to_tensor(m), tf.convert_to_tensor(v)
