"""Schedule-free learning: an average of the iterates takes the place of a decay of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.engine.update.optimizers.base import Optimizer, decay_rate, like
from returnn_tf.engine.update.optimizers.registry import register_optimizer
from returnn_tf.native.fused.update import ScheduleFreeRule, UpdateRule
from returnn_tf.util.lazy_tf import tf


def _is_share(value: float) -> Optional[str]:
    return None if 0 < value < 1 else "must be between 0 and 1"


@register_optimizer("schedulefreeadamw")
@dataclass
class ScheduleFreeAdamW(Optimizer):
    """AdamW for a sequence z, of which x is the average; gradients are taken at y, between the two.

    In step t, ``y = (1-beta1) z + beta1 x; z -= lr_t (g / (sqrt(v') + epsilon) + weight_decay y)`` with the mean square
    v' without its bias; ``x += c (z - x)`` with the weight ``c = lr_t^2 / (lr_1^2 + ... + lr_t^2)``. The rate grows
    linearly over ``warmup_steps``, and should be constant otherwise.

    Training has y as parameters. Evaluation, checkpoints and exports have x, see ``weight_average``. The slot is
    ``z - y``, so that loaded or synchronised parameters change all three sequences in the same way. Defazio et al.
    2024, arXiv 2405.15682.
    """

    keeps_averages: ClassVar[bool] = True

    beta1: float = option(0.9, help="share of the average in the parameters of training", check=_is_share)
    beta2: float = option(0.999, help="decay of the mean of the squared gradient", check=decay_rate)
    epsilon: float = option(1e-8, help="added to the root of the mean square", check=at_least(0))
    weight_decay: float = option(
        0.0, help="share of each weight which is removed per step, times the learning rate", check=at_least(0)
    )
    warmup_steps: int = option(0, help="number of updates over which the learning rate grows", check=at_least(0))

    def slot_inits(self) -> dict[str, float]:
        """Return the distance of z from the parameters, and the second moment."""
        return {"z_offset": 0.0, "v": 0.0}

    def scalar_inits(self) -> dict[str, float]:
        """Return the sum of the squared rates."""
        return {"weight_sum": 0.0}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return rate, its sum, weight of the newest z, and what removes the bias of the second moment."""
        t = iteration + 1.0
        if self.warmup_steps:
            rate *= tf.minimum(t / self.warmup_steps, 1.0)
        total = scalars["weight_sum"] + tf.square(rate)
        weight = tf.math.divide_no_nan(tf.square(rate), total)
        return {"lr": rate, "weight_sum": total, "weight": weight, "v_factor": 1.0 / (1.0 - self.beta2**t)}

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of one op over all parameters."""
        numbers = (self.beta1, self.beta2, self.epsilon, self.weight_decay)
        return ScheduleFreeRule(hyper["lr"], hyper["weight"], hyper["v_factor"], *numbers)

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the second moment, then the offset and the variable."""
        beta1, beta2, epsilon, decay = like(var, self.beta1, self.beta2, self.epsilon, self.weight_decay)
        v = slots["v"].assign_add((1.0 - beta2) * (tf.square(grad) - slots["v"]))
        step = hyper["lr"] * (grad / (tf.sqrt(hyper["v_factor"] * v) + epsilon) + decay * var)
        offset = slots["z_offset"].read_value()
        # z - x is offset / beta1; the step adds to it, and its share `weight` goes to x
        after = (1.0 - hyper["weight"]) * (offset - beta1 * step)
        slots["z_offset"].assign(after)
        var.assign_add(offset - step - after)

    fused_replaces = update

    def average(self, value: Any, slots: dict[str, Any]) -> Any:
        """Return x."""
        beta1 = tf.constant(self.beta1, value.dtype)
        return value - (1.0 - beta1) / beta1 * slots["z_offset"]
