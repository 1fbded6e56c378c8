"""minLSTM: an LSTM whose gates and candidate do not depend on the state, without an output gate."""

from __future__ import annotations

from returnn_tf.ops.cells.diagonal.mingru import MinGru, positive
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.util.lazy_tf import tf


@register_cell("minlstm")
class MinLstm(MinGru):
    """minLSTM (Feng et al. 2024, arXiv 2410.01201), whose gates sum to 1.

    ``f, i, c = split(x W + b);  f, i = sigmoid(f), sigmoid(i);  h' = (f h + i c) / (f + i)``

    With the option ``positive`` the candidate is ``g(c)``, see the unit mingru. All frames are computed in parallel.

    Weights: ``W`` [in, 3 n], ``b`` [3 n] (0), columns: forget gate f, input gate i, candidate c.
    """

    gates = 3

    def terms(self, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a and b of ``h' = a h + b`` [..., n] from ``z`` [..., 3 n]."""
        f, i, c = tf.split(z, 3, axis=-1)
        # f / (f + i) = sigmoid(log f - log i): no quotient of two numbers near 0
        odds = tf.math.log_sigmoid(f) - tf.math.log_sigmoid(i)
        return tf.sigmoid(odds), tf.sigmoid(-odds) * (positive(c) if self.opts.positive else c)
