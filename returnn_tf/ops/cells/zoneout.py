"""LSTM with zoneout: some units keep their state in training; otherwise old and new state are mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.ops.cells.base import State, drop_rate
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.standard_lstm import KernelLstm
from returnn_tf.util.lazy_tf import tf


@register_cell("zoneoutlstm")
class ZoneoutLstm(KernelLstm):
    """Zoneout LSTM (Krueger et al. 2017, arXiv 1606.01305).

    With the rates zc and zh and the result (c, h) of an LSTM step: in training each unit keeps its old c with
    probability zc and its old h with probability zh; elsewhere ``c' = (1 - zc) c + zc c_old``, and h' likewise.

    Weights: ``lstm_cell/kernel`` [in + n, 4 n], ``lstm_cell/bias`` [4 n]; gates i, j, f, o.
    """

    @dataclass
    class Options(KernelLstm.Options):
        """The options in ``unit_opts``."""

        forget_bias: float = option(
            1.0, help="added to the forget gate in every frame, in addition to the trained bias"
        )
        zoneout_factor_cell: float = option(0.0, help="rate zc of the cell state", check=drop_rate)
        zoneout_factor_output: float = option(0.0, help="rate zh of the output state", check=drop_rate)
        use_zoneout_output: Optional[bool] = option(
            None,
            help="output h', not the new h before zoneout; default True from behavior_version 17",
        )

    def __init__(self, n_out: int, in_dim: int, *, unit_opts: Optional[Mapping[str, Any]] = None, **kwargs: Any):
        super().__init__(n_out, in_dim, unit_opts=unit_opts, **kwargs)
        if self.opts.use_zoneout_output is None:
            self.opts.use_zoneout_output = self.behavior_version >= 17

    @property
    def is_plain(self) -> bool:
        """Return whether no zoneout is used."""
        return not self.opts.zoneout_factor_cell and not self.opts.zoneout_factor_output

    @property
    def step_noise(self) -> bool:
        """Return whether zoneout draws noise in each step."""
        return not self.is_plain

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute an LSTM step, and keep parts of the previous cell and output."""
        new_h, (new_c, _) = super().step(weights, z, state, seed)
        keep_c, keep_h = self._keep_factors(new_h, seed)
        c = new_c + keep_c * (state[0] - new_c)
        h = new_h + keep_h * (state[1] - new_h)
        return (h if self.opts.use_zoneout_output else new_h), (c, h)

    def _keep_factors(self, like: tf.Tensor, seed: Optional[tf.Tensor]) -> tuple[Any, Any]:
        """Return the share of the old c and of the old h that is kept: the rates, or samples of 0 and 1."""
        rates = self.opts.zoneout_factor_cell, self.opts.zoneout_factor_output
        if seed is None:
            return rates
        noise = tf.random.stateless_uniform([2, tf.shape(like)[0], self.n_out], seed=seed)
        return tf.cast(noise[0] < rates[0], like.dtype), tf.cast(noise[1] < rates[1], like.dtype)
