"""The simple recurrent network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.options import option
from returnn_tf.ops.activations import ActivationOption, get_activation
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.rounded import times
from returnn_tf.util.lazy_tf import tf


@register_cell("basicrnn")
class BasicRnn(Cell):
    """``h' = tanh([x, h] K + b)`` (Elman 1990).

    Weights: ``basic_rnn_cell/kernel`` [in + n, n] with the rows of the input first, ``basic_rnn_cell/bias`` [n].
    """

    splits_input_weights = False
    multiplies_rounded = True

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        activation: ActivationOption = option("tanh", help="activation of the output")

    def param_specs(self) -> list[CellParam]:
        """Declare the kernel [in + n, n] and the bias."""
        n = self.n_out
        return [
            CellParam("basic_rnn_cell/kernel", (self.in_dim + n, n), "forward"),
            CellParam("basic_rnn_cell/bias", (n,), "bias", 0.0),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the rows of the kernel for the input, and the bias."""
        return params["basic_rnn_cell/kernel/input"], params["basic_rnn_cell/bias"]

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the rows of the kernel for the state."""
        return [params["basic_rnn_cell/kernel/state"]]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute the new state, which is also the output."""
        h = get_activation(self.opts.activation)(z + times(state[0], weights[0]))
        return h, (h,)
