"""minGRU: a GRU whose gate and candidate do not depend on the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.options import option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.lazy_tf import tf


@register_cell("mingru")
class MinGru(Cell):
    """minGRU (Feng et al. 2024, arXiv 2410.01201).

    ``u, c = split(x W + b);  u = sigmoid(u);  h' = (1 - u) h + u c``

    With the option ``positive`` the candidate is ``g(c)``, where ``g(c) = c + 0.5`` for c >= 0, else ``sigmoid(c)``:
    the variant for which the paper computes in log space. All frames are computed in parallel.

    Weights: ``W`` [in, 2 n], ``b`` [2 n] (0), columns: update gate u, candidate c.
    """

    gates = 2

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        positive: bool = option(False, help="positive candidates: c + 0.5 where c >= 0, sigmoid(c) elsewhere")

    def param_specs(self) -> list[CellParam]:
        """Declare the input weights and the bias; there are no recurrent weights."""
        return projection_specs(self)

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W`` and ``b``; None if the input is already projected."""
        return (params["W"], params["b"]) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Prepare nothing: there are no recurrent weights."""
        return []

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Scale the state and add the term of the frame."""
        kept, added = self.terms(z)
        h = kept * state[0] + added
        return h, (h,)

    def terms(self, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a and b of ``h' = a h + b`` [..., n] from ``z`` [..., 2 n]."""
        u, c = tf.split(z, 2, axis=-1)
        return tf.sigmoid(-u), tf.sigmoid(u) * (positive(c) if self.opts.positive else c)

    @property
    def is_parallel(self) -> bool:
        """Return True: the recurrence is linear, and its factors do not depend on the state."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames by a linear recurrence."""
        h, last = linear_recurrence(*self.terms(z), state[0], lengths, reverse)
        return h, (last,)


def projection_specs(cell: Cell) -> list[CellParam]:
    """Declare the input weights ``W`` [in, gates n] and the bias ``b`` [gates n], 0, unless the input is projected."""
    width = cell.gates * cell.n_out
    if not cell.input_projection:
        return []
    return [CellParam("W", (cell.in_dim, width), "forward"), CellParam("b", (width,), "bias", 0.0)]


def positive(x: tf.Tensor) -> tf.Tensor:
    """Compute ``x + 0.5`` where x >= 0, ``sigmoid(x)`` elsewhere: continuous, increasing, positive."""
    return tf.where(x >= 0, x + 0.5, tf.sigmoid(x))
