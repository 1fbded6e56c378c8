"""LSTM with one kernel for input and state, gates in the order i, j, f, o and a forget bias; peepholes, clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.options import above, option
from returnn_tf.ops.activations import ActivationOption, get_activation
from returnn_tf.ops.cells.base import INITIALIZERS_OF_LAYER, Params, State
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.rounded import side_by_side, split_columns, times
from returnn_tf.util.lazy_tf import tf

_NAMED = "the states c and h are named"
_NO_PROJECTION = "put a linear layer behind the recurrent one"


class KernelLstm(LstmCell):
    """Base of LSTMs with one kernel: parameters in a scope, stored as i, j, f, o, computed as j, i, f, o.

    Weights: ``<scope>/kernel`` [in + n, 4 n] with the rows of the input first, ``<scope>/bias`` [4 n].
    """

    scope: ClassVar[str] = "lstm_cell"
    splits_input_weights = False

    def param_specs(self) -> list[CellParam]:
        """Declare kernel [in + n, 4 n] and bias below the scope of the cell."""
        n = self.n_out
        return [
            CellParam(self.scope + "/kernel", (self.in_dim + n, 4 * n), "forward"),
            CellParam(self.scope + "/bias", (4 * n,), "bias", 0.0),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the rows of the kernel for the input, and the bias with ``forget_bias``, in the order j, i, f, o."""
        i, j, f, o = tf.split(params[self.scope + "/bias"], 4)
        bias = tf.concat([j, i, f + self.opts.forget_bias, o], axis=0)
        return to_native_order(params[self.scope + "/kernel/input"], self.n_out), bias

    def recurrent_weights(self, params: Params, seed: Optional[tf.Tensor]) -> tf.Tensor:
        """Return the rows of the kernel for the state, in the order j, i, f, o."""
        return to_native_order(params[self.scope + "/kernel/state"], self.n_out)


def to_native_order(weights: Any, n: int) -> Any:
    """Permute columns of the gates from i, j, f, o to j, i, f, o.

    :param weights: [rows, 4 n], `RoundedMatrix` or a tensor
    """
    i, j, fo = split_columns(weights, [n, n, 2 * n])
    return side_by_side([j, i, fo])


@register_cell("basiclstm")
class BasicLstm(KernelLstm):
    """LSTM with a forget bias (Zaremba et al. 2014).

    Weights: ``basic_lstm_cell/kernel`` [in + n, 4 n], ``basic_lstm_cell/bias`` [4 n]; gates i, j, f, o.
    """

    scope = "basic_lstm_cell"

    @dataclass
    class Options(KernelLstm.Options):
        """The options in ``unit_opts``."""

        forget_bias: float = option(
            1.0, help="added to the forget gate in every frame, in addition to the trained bias"
        )
        activation: ActivationOption = option(
            "tanh", help="activation of the cell input and of the cell state before the output gate"
        )
        state_is_tuple: bool = option(True, help="keep c and h apart", inert=_NAMED)

    @property
    def is_plain(self) -> bool:
        """Return whether the activation is tanh."""
        return bool(self.opts.activation == "tanh")

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute cell and output with the activation of the options."""
        c, h = state
        activation = get_activation(self.opts.activation)
        j, i, f, o = tf.split(z + times(h, weights[0]), 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * activation(j)
        h = tf.sigmoid(o) * activation(c)
        return h, (c, h)


@register_cell("standardlstm", step_names=("lstmblock", "lstmblockfused"))
class StandardLstm(KernelLstm):
    """LSTM with a forget bias, optional peepholes (Sak et al. 2014) and clipping of the cell state.

    Weights: ``lstm_cell/kernel`` [in + n, 4 n], ``lstm_cell/bias`` [4 n], gates i, j, f, o; with peepholes
    ``lstm_cell/w_i_diag``, ``lstm_cell/w_f_diag``, ``lstm_cell/w_o_diag`` [n].
    """

    @dataclass
    class Options(KernelLstm.Options):
        """The options in ``unit_opts``."""

        forget_bias: float = option(
            1.0, help="added to the forget gate in every frame, in addition to the trained bias"
        )
        use_peepholes: bool = option(False, help="the gates see the cell state: i and f the old one, o the new one")
        cell_clip: Optional[float] = option(None, help="clip the cell state to [-cell_clip, cell_clip]", check=above(0))
        activation: ActivationOption = option(
            "tanh", help="activation of the cell input and of the cell state before the output gate"
        )
        initializer: Any = option(None, help="initial weights", unsupported=INITIALIZERS_OF_LAYER)
        num_proj: Optional[int] = option(None, help="size of a projected output", unsupported=_NO_PROJECTION)
        proj_clip: Optional[float] = option(None, help="bound of the projected output", unsupported=_NO_PROJECTION)
        num_unit_shards: Optional[int] = option(None, help="obsolete", inert="the weights are not split")
        num_proj_shards: Optional[int] = option(None, help="obsolete", inert="the weights are not split")
        state_is_tuple: bool = option(True, help="keep c and h apart", inert=_NAMED)

    @property
    def is_plain(self) -> bool:
        """Return whether no peephole, clip or other activation is used."""
        return not self.opts.use_peepholes and self.opts.cell_clip is None and self.opts.activation == "tanh"

    def param_specs(self) -> list[CellParam]:
        """Declare kernel and bias, and the peephole weights if they are used."""
        specs = super().param_specs()
        if self.opts.use_peepholes:
            specs += [CellParam("lstm_cell/w_%s_diag" % gate, (self.n_out,), "recurrent") for gate in "ifo"]
        return specs

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the recurrent weights, and those of the peepholes."""
        weights = [self.recurrent_weights(params, seed)]
        if self.opts.use_peepholes:
            weights += [params["lstm_cell/w_%s_diag" % gate] for gate in "ifo"]
        return weights

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute cell and output with peepholes and clipping, if the options ask for them."""
        c, h = state
        activation = get_activation(self.opts.activation)
        j, i, f, o = tf.split(z + times(h, weights[0]), 4, axis=-1)
        if self.opts.use_peepholes:
            i, f = i + weights[1] * c, f + weights[2] * c
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * activation(j)
        if self.opts.cell_clip is not None:
            c = tf.clip_by_value(c, -self.opts.cell_clip, self.opts.cell_clip)
        if self.opts.use_peepholes:
            o = o + weights[3] * c
        h = tf.sigmoid(o) * activation(c)
        return h, (c, h)
