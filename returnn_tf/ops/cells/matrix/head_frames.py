"""What changes and reads the matrix that a head has as its state, and one step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from returnn_tf.util.lazy_tf import tf


@dataclass(frozen=True)
class HeadFrames:
    """What changes and reads the state of each head in some frames, all [..., heads, d].

    ``S' = diag(exp(log_decay)) S + b (a S) + k v`` and ``y = r S'``. With a bonus it is
    ``y = r (S + diag(bonus) k v)``.

    :param log_decay: <= 0; None: no decay
    :param a: and ``b``; None: no such term
    :param bonus: [heads, d]
    :param gate: [..., n_out], of the output
    """

    r: tf.Tensor
    k: tf.Tensor
    v: tf.Tensor
    log_decay: Optional[tf.Tensor] = None
    a: Optional[tf.Tensor] = None
    b: Optional[tf.Tensor] = None
    bonus: Optional[tf.Tensor] = None
    gate: Optional[tf.Tensor] = None

    def step(self, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Compute one frame.

        :param state: [batch, heads, d, m]
        :return: y [batch, heads, m], and the new state
        """
        added = self.k[..., tf.newaxis] * self.v[..., tf.newaxis, :]
        new = state if self.log_decay is None else tf.exp(self.log_decay)[..., tf.newaxis] * state
        if self.a is not None and self.b is not None:
            new += self.b[..., tf.newaxis] * tf.matmul(self.a[..., tf.newaxis, :], state)
        new += added
        seen = new if self.bonus is None else state + self.bonus[..., tf.newaxis] * added
        return tf.matmul(self.r[..., tf.newaxis, :], seen)[..., 0, :], new
