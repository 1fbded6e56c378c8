"""Muon: orthogonal steps for the matrices of hidden layers, and another optimizer for all other parameters."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Optional

from returnn_tf.config.errors import RateError
from returnn_tf.config.options import at_least, option
from returnn_tf.engine.update.optimizers.base import Optimizer, decay_rate, like
from returnn_tf.engine.update.optimizers.registry import create_optimizer, register_optimizer
from returnn_tf.util.lazy_tf import tf

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ORIGINAL, _MATCH_RMS_ADAMW = "original", "match_rms_adamw"


@register_optimizer("muon")
@dataclass
class Muon(Optimizer):
    """``m = momentum m + g; w -= lr (scale orthogonalized(g + momentum m) + weight_decay w)``.

    A matrix, in -> out features, is orthogonalised by a Newton-Schulz iteration that brings its singular values near 1:
    ``X = X / |X|``, then ``X = a X + (b A + c A^2) X`` with ``A = X X^T`` and (a, b, c) = (3.4445, -4.7750, 2.0315).
    All axes of a filter but the last one count as in. Jordan et al. 2024, kellerjordan.github.io/posts/muon; the scale
    ``match_rms_adamw`` is that of Liu et al. 2025, arXiv 2502.16982.

    It updates the matrices of hidden layers. Vectors, layers with labels as input, and layers that have a loss or are
    an output of the network, are updated by ``others``. The log names them.
    """

    momentum: float = option(0.95, help="factor on the decaying sum of the gradients", check=decay_rate)
    nesterov: bool = option(True, help="look ahead by one step")
    steps: int = option(5, help="number of iterations", check=at_least(1))
    scale: str = option(
        _MATCH_RMS_ADAMW,
        help="of the steps: match_rms_adamw, 0.2 sqrt(max(in, out)), goes with the learning rate of AdamW, so that one "
        "rate fits all parameters; original, sqrt(max(1, out / in)), with one around 0.02",
        choices=(_MATCH_RMS_ADAMW, _ORIGINAL),
    )
    weight_decay: float = option(
        0.0, help="share of each weight which is removed per step, times the learning rate", check=at_least(0)
    )
    others: dict[str, Any] = option({"class": "adamw"}, help="optimizer of all other parameters")

    def __post_init__(self) -> None:
        where = "optimizer: class 'muon': others"
        if isinstance(create_optimizer(dict(self.others), where=where), Muon):
            raise RateError("%s: muon updates matrices of hidden layers only. Name another class, e.g. adamw." % where)

    def instead_of_this(self, *, hidden_matrix: bool) -> Optional[dict[str, Any]]:
        """Return the optimizer of what is no matrix of a hidden layer."""
        return None if hidden_matrix else dict(self.others)

    def slot_inits(self) -> dict[str, float]:
        """Return the decaying sum of the gradients."""
        return {"momentum": 0.0}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Update the sum, then the variable."""
        momentum, decay = like(var, self.momentum, self.weight_decay)
        m = slots["momentum"].assign(momentum * slots["momentum"] + grad)
        direction = grad + momentum * m if self.nesterov else tf.convert_to_tensor(m)
        n_out = var.shape[-1]
        matrix = tf.reshape(direction, [-1, n_out])
        n_in = matrix.shape[0]
        scale = 0.2 * sqrt(max(n_in, n_out)) if self.scale == _MATCH_RMS_ADAMW else sqrt(max(1.0, n_out / n_in))
        step = tf.reshape(orthogonalized(matrix, self.steps), var.shape)
        step = like(var, scale)[0] * step
        if self.weight_decay:
            step += decay * var
        var.assign_sub(hyper["lr"] * step)


def orthogonalized(matrix: Any, steps: int) -> Any:
    """Return a matrix with the singular vectors of another one, and singular values near 1."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]  # the products are of the shorter side
    x = matrix / (tf.norm(matrix) + tf.constant(1e-7, matrix.dtype))
    for _ in range(steps):
        square = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
        factor = b * square + c * tf.matmul(square, square)
        x = a * x + (tf.matmul(x, factor) if tall else tf.matmul(factor, x))
    return x
