"""LSTM with layer normalisation at several places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import above, option
from returnn_tf.ops.activations import ActivationOption, get_activation
from returnn_tf.ops.cells.base import SEED_OF_CONFIG, Cell, Params, State, drop_rate, dropout
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.util.lazy_tf import tf

GATE_NORMS = ("global_norm", "global_norm_joined", "per_gate_norm")


@register_cell("layernormvariantslstm")
class LayerNormLstm(Cell):
    """LSTM with layer normalisation (Ba et al. 2016, arXiv 1607.06450), gates in the order i, j, f, o.

    ``c' = sigmoid(f) c + sigmoid(i) tanh(j);  h' = sigmoid(o) tanh(c')``, where LN(x) means x normalised over the last
    axis, times gamma, plus beta, and with at most one of:

    * ``global_norm``: ``i, j, f, o = LN(x W_ff) + LN(h W_re)`` (``input_below``; ``state_below`` without beta), [4 n]
    * ``global_norm_joined``: ``LN(x W_ff + h W_re)`` (``lstm_in``), [4 n]
    * ``per_gate_norm``: an LN for each gate of the sum (``i_gate``, ``j_gate``, ``f_gate``, ``o_gate``), [n]

    ``cell_norm``: ``c' = LN(c')`` (``new_c``, [n]) is the state; ``hidden_norm``: ``h' = LN(h')`` (``new_h``, [n]).

    Weights: ``W_ff`` [in, 4 n], ``W_re`` [n, 4 n], ``gamma_<place>``, ``beta_<place>``; ``bias`` [4 n] without any
    norm on the gates.
    """

    state_keys = ("c", "h")
    gates = 4
    splits_input_weights = False

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        global_norm: bool = option(True, help="norms of input and recurrent part, each over all gates")
        global_norm_joined: bool = option(False, help="one norm of the sum of input and recurrent part, over all gates")
        per_gate_norm: bool = option(False, help="one norm for each gate")
        cell_norm: bool = option(True, help="norm of the new cell state")
        cell_norm_in_output: bool = option(
            True, help="the output sees the normalised cell state, rather than the one before"
        )
        hidden_norm: bool = option(False, help="norm of the output")
        norm_gain: float = option(1.0, help="initial value of all gamma")
        norm_shift: float = option(0.0, help="initial value of all beta")
        forget_bias: float = option(
            0.0, help="initial value of the bias of the forget gate, or added to that of its beta"
        )
        activation: ActivationOption = option("tanh", help="activation of the cell input and of the cell state")
        dropout: float = option(0.0, help="dropout on the cell input j (Semeniuta et al. 2016)", check=drop_rate)
        dropout_h: float = option(0.0, help="dropout on the new output h", check=drop_rate)
        variance_epsilon: float = option(1e-12, help="added to the variance in all norms", check=above(0))
        dropout_seed: Optional[int] = option(None, help="seed of the masks", inert=SEED_OF_CONFIG)
        with_concat: bool = option(
            False,
            help="one matrix for input and state",
            unsupported="they have W_ff and W_re; the unit standardlstm has one kernel",
        )

    def __init__(self, n_out: int, in_dim: int, *, unit_opts: Optional[Mapping[str, Any]] = None, **kwargs: Any):
        super().__init__(n_out, in_dim, unit_opts=unit_opts, **kwargs)
        used = [name for name in GATE_NORMS if getattr(self.opts, name)]
        if len(used) > 1:
            raise OptionError(
                "%s: unit_opts %s exclude each other. Switch off all but one, e.g. %r: False (it is on by default)."
                % (self.where, " and ".join(used), used[0])
            )
        self.gate_norm = used[0] if used else None

    @property
    def step_noise(self) -> bool:
        """Return whether dropout is used in each step."""
        return bool(self.opts.dropout or self.opts.dropout_h)

    def param_specs(self) -> list[CellParam]:
        """Declare the weights, and the scales and shifts of the normalisations that the options ask for."""
        n, forget = self.n_out, self.opts.forget_bias
        all_gates = np.repeat([0.0, 0.0, forget, 0.0], n)
        specs = [CellParam("W_ff", (self.in_dim, 4 * n), "forward"), CellParam("W_re", (n, 4 * n), "recurrent")]
        if self.gate_norm is None:
            specs.append(CellParam("bias", (4 * n,), "bias", all_gates))
        elif self.gate_norm == "global_norm":
            specs += self._norm_specs("input_below", 4 * n, all_gates) + self._norm_specs("state_below", 4 * n)[:1]
        elif self.gate_norm == "global_norm_joined":
            specs += self._norm_specs("lstm_in", 4 * n, all_gates)
        else:
            for gate in "ijfo":
                specs += self._norm_specs(gate + "_gate", n, forget if gate == "f" else 0.0)
        for place in ("cell", "hidden"):
            if getattr(self.opts, place + "_norm"):
                specs += self._norm_specs("new_" + place[0], n)
        return specs

    def _norm_specs(self, place: str, dim: int, shift: Any = 0.0) -> list[CellParam]:
        """Declare gamma and beta of the norm at ``place``; ``shift`` is added to the initial beta."""
        return [
            CellParam("gamma_" + place, (dim,), "fixed", self.opts.norm_gain),
            CellParam("beta_" + place, (dim,), "fixed", self.opts.norm_shift + shift),
        ]

    def project_input(self, params: Params, x: tf.Tensor) -> tf.Tensor:
        """Multiply by ``W_ff``, and normalise the product if the input is normalised separately."""
        z = self.project(x, params["W_ff"], params.get("bias"))
        if self.gate_norm == "global_norm":
            z = self._norm(z, params["gamma_input_below"]) + params["beta_input_below"]
        return z

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the recurrent weights and the parameters of the norms.

        In this order: gamma [4 n] and beta [4 n] of the gates, gamma and beta of new c, of new h; only those in use.
        """
        weights = [params["W_re"]]
        if self.gate_norm == "global_norm":
            weights += [params["gamma_state_below"]]
        elif self.gate_norm == "global_norm_joined":
            weights += [params["gamma_lstm_in"], params["beta_lstm_in"]]
        elif self.gate_norm == "per_gate_norm":
            for part in ("gamma", "beta"):
                weights.append(tf.stack([params["%s_%s_gate" % (part, gate)] for gate in "ijfo"], axis=0))
        for place in ("cell", "hidden"):
            if getattr(self.opts, place + "_norm"):
                weights += [params["%s_new_%s" % (part, place[0])] for part in ("gamma", "beta")]
        return weights

    def _norm(self, x: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        centered = x - mean
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        return centered * (tf.math.rsqrt(variance + self.opts.variance_epsilon) * gamma)

    def _gates(self, z: tf.Tensor, h: tf.Tensor, weights: list[tf.Tensor]) -> list[tf.Tensor]:
        """Compute i, j, f, o before their activation, consuming weights from the front of the list."""
        recurrent = tf.matmul(h, weights.pop(0))
        z = z + (self._norm(recurrent, weights.pop(0)) if self.gate_norm == "global_norm" else recurrent)
        if self.gate_norm == "global_norm_joined":
            z = self._norm(z, weights.pop(0)) + weights.pop(0)
        if self.gate_norm == "per_gate_norm":
            z = self._norm(tf.reshape(z, [-1, 4, self.n_out]), weights.pop(0)) + weights.pop(0)
            return list(tf.unstack(z, axis=1))
        return list(tf.split(z, 4, axis=-1))

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute gates, cell and output, with the normalisations and dropout of the options."""
        c, h = state
        left = list(weights)
        activation = get_activation(self.opts.activation)
        i, j, f, o = self._gates(z, h, left)
        j = activation(j)
        if seed is not None and self.opts.dropout:
            j = dropout(j, self.opts.dropout, seed)
        c_before_norm = c = tf.sigmoid(f) * c + tf.sigmoid(i) * j
        if self.opts.cell_norm:
            c = self._norm(c, left.pop(0)) + left.pop(0)
        h = tf.sigmoid(o) * activation(c if self.opts.cell_norm_in_output else c_before_norm)
        if self.opts.hidden_norm:
            h = self._norm(h, left.pop(0)) + left.pop(0)
        if seed is not None and self.opts.dropout_h:
            h = dropout(h, self.opts.dropout_h, seed + tf.constant([1, 0], seed.dtype))
        return h, (c, h)
