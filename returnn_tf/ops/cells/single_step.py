"""One step of a cell inside an outer loop, with everything constant over the steps prepared in advance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class PreparedCell:
    """A cell with everything prepared that its steps share.

    :param params: from `Cell.split_kernels`
    :param weights: from `Cell.prepare`
    :param projection: see `Cell.input_weights`
    :param seed: int [2]: training, draw noise in each step; None: no noise
    """

    cell: Cell
    params: Params
    weights: Sequence[tf.Tensor]
    projection: Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]
    seed: Optional[tf.Tensor]

    def step(self, x: tf.Tensor, state: State, step: Optional[tf.Tensor]) -> tuple[tf.Tensor, State]:
        """Compute one step.

        :param x: [batch, in], or int [batch] of class indices
        :param step: its number, int32 scalar
        """
        if self.projection is None:
            return self.step_projected(self.cell.project_input(self.params, x), state, step)
        return self.step_projected(self.cell.project(x, *self.projection), state, step)

    def step_projected(self, z: tf.Tensor, state: State, step: Optional[tf.Tensor]) -> tuple[tf.Tensor, State]:
        """Compute one step from an already projected input [batch, projected_dim]."""
        noise = self.seed
        if noise is not None:
            if not self.cell.step_noise:
                noise = None
            elif step is not None:
                noise = noise + tf.cast(tf.stack([0, step + 1]), noise.dtype)
        return self.cell.step(self.weights, z, state, noise)


def prepare_cell(cell: Cell, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> PreparedCell:
    """Compute the weights that all steps of a cell share."""
    params = cell.split_kernels(params)
    weights = cell.prepare(params, batch=batch, seed=seed)
    return PreparedCell(cell, params, weights, cell.input_weights(params), seed)
