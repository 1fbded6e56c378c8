"""Recurrent highway network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from returnn_tf.config.options import between, option
from returnn_tf.ops.cells.base import SEED_OF_CONFIG, Cell, Params, State, drop_rate, dropout
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.util.lazy_tf import tf


@register_cell("rhn")
class RecurrentHighway(Cell):
    """RHN (Zilly et al. 2017, arXiv 1607.03474).

    For each depth d: ``h, t = tanh, sigmoid of split(s R_d + [d = 0] (x W + b));  s = s + t (h - s)``

    Weights: ``W`` [in, 2 n], ``b`` [2 n], ``rhn_cell/depth_<d>/W`` [n, 2 n].
    """

    gates = 2

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        depth: int = option(5, help="number of highway layers within one frame", check=between(1, 1000))
        dropout: float = option(
            0.0, help="dropout on the state before the matrices, one mask for all frames and depths", check=drop_rate
        )
        dropout_seed: Optional[int] = option(None, help="seed of the mask", inert=SEED_OF_CONFIG)
        batch_size: Any = option(None, help="number of sequences", inert="it is that of the input")
        transform_bias: Optional[float] = option(
            None, help="initial bias of the transform gate t; negative values keep the state"
        )

    def param_specs(self) -> list[CellParam]:
        """Declare the input weights, and the recurrent weights of each depth."""
        n = self.n_out
        specs = []
        if self.input_projection:
            bias = np.repeat([0.0, self.opts.transform_bias or 0.0], n)
            specs += [CellParam("W", (self.in_dim, 2 * n), "forward"), CellParam("b", (2 * n,), "bias", bias)]
        depths = range(self.opts.depth)
        return specs + [CellParam("rhn_cell/depth_%d/W" % depth, (n, 2 * n), "recurrent") for depth in depths]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W`` and ``b``; None if the input is already projected."""
        return (params["W"], params["b"]) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the matrices of all depths, and the dropout mask [batch, n] if there is dropout."""
        weights = [params["rhn_cell/depth_%d/W" % depth] for depth in range(self.opts.depth)]
        if seed is not None and self.opts.dropout:
            ones = tf.ones([batch, self.n_out], weights[0].dtype)
            weights.append(dropout(ones, self.opts.dropout, seed))
        return weights

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Pass the state through the highway layers of all depths; the first one sees the input."""
        (s,) = state
        depth = self.opts.depth
        mask = weights[depth] if len(weights) > depth else None
        for d in range(depth):
            x = tf.matmul(s if mask is None else s * mask, weights[d])
            h, t = tf.split(x + z if d == 0 else x, 2, axis=-1)
            s = s + tf.sigmoid(t) * (tf.tanh(h) - s)
        return s, (s,)
