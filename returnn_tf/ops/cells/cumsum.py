"""A cell that sums up its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.lazy_tf import tf


@register_cell("cumsum")
class Cumsum(Cell):
    """``h' = h + x``: the sum of all frames so far. The dim of the input is ``n_out``.

    Weights: none.
    """

    keeps_size = True
    takes_classes = False

    def _check_input(self) -> None:
        super()._check_input()
        if self.in_dim != self.n_out:
            raise OptionError(
                "%s: unit 'cumsum' adds up its input, which has dim %d, so n_out must be %d, not %d."
                % (self.where, self.in_dim, self.in_dim, self.n_out)
            )

    def param_specs(self) -> list[CellParam]:
        """Declare no parameters."""
        return []

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Prepare nothing."""
        return []

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Add the frame to the sum."""
        h = state[0] + z
        return h, (h,)

    @property
    def is_parallel(self) -> bool:
        """Return True: the sum is a linear recurrence."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all sums by a prefix sum."""
        h, last = linear_recurrence(tf.ones_like(z), z, state[0], lengths, reverse)
        return h, (last,)
