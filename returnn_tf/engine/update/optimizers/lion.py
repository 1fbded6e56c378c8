"""Lion: the sign of a mixture of momentum and gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.engine.update.optimizers.base import Optimizer, decay_rate, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import LionRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


@register_optimizer("lion")
@dataclass
class Lion(Optimizer):
    """``w -= lr (sign(beta1 m + (1-beta1) g) + weight_decay w); m = beta2 m + (1-beta2) g``.

    Every entry moves by the learning rate, which should thus be 3 to 10 times smaller than that of AdamW, and the
    weight decay as many times larger. Chen et al. 2023, arXiv 2302.06675.
    """

    beta1: float = option(0.9, help="share of the mean in the direction", check=decay_rate)
    beta2: float = option(0.99, help="decay of the mean of the gradient", check=decay_rate)
    weight_decay: float = option(
        0.0, help="share of each weight which is removed per step, times the learning rate", check=at_least(0)
    )

    def slot_inits(self) -> dict[str, float]:
        """Return the mean."""
        return {"m": 0.0}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        return LionRule(hyper["lr"], self.beta1, self.beta2, self.weight_decay)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the variable, then the mean."""
        beta1, beta2, decay = like(var, self.beta1, self.beta2, self.weight_decay)
        m = slots["m"].read_value()
        var.assign_sub(hyper["lr"] * (tf.sign(m + (1.0 - beta1) * (grad - m)) + decay * var))
        slots["m"].assign(m + (1.0 - beta2) * (grad - m))

    fused_replaces = update
