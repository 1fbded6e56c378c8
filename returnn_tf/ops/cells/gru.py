"""Gated recurrent unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.native.gru import gru_ops, native_gru
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, in_type, ragged
from returnn_tf.ops.activations import ActivationOption, get_activation
from returnn_tf.ops.cells.base import INITIALIZERS_OF_LAYER, Cell, CellFrames, Kernel, Params, State
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import zero_padding
from returnn_tf.ops.rounded import side_by_side, times
from returnn_tf.util.lazy_tf import tf


@register_cell("gru")
class Gru(Cell):
    """GRU (Cho et al. 2014, arXiv 1406.1078).

    ``r, u = sigmoid([x, h] K_gates + b_gates);  c = tanh([x, r h] K_candidate + b_candidate);  h' = u h + (1 - u) c``

    Weights: ``gru_cell/gates/kernel`` [in + n, 2 n], ``gru_cell/gates/bias`` [2 n], ``gru_cell/candidate/kernel``
    [in + n, n], ``gru_cell/candidate/bias`` [n].
    """

    gates = 3
    multiplies_rounded = True
    splits_input_weights = False

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        activation: ActivationOption = option("tanh", help="activation of the candidate")
        kernel_initializer: Any = option(None, help="initial weights", unsupported=INITIALIZERS_OF_LAYER)
        bias_initializer: Any = option(None, help="initial biases", unsupported=INITIALIZERS_OF_LAYER)

    def param_specs(self) -> list[CellParam]:
        """Declare kernel and bias of the gates and of the candidate."""
        n, rows = self.n_out, self.in_dim + self.n_out
        return [
            CellParam("gru_cell/gates/kernel", (rows, 2 * n), "forward"),
            # Open update gates at the start: the state is kept.
            CellParam("gru_cell/gates/bias", (2 * n,), "bias", 1.0),
            CellParam("gru_cell/candidate/kernel", (rows, n), "forward"),
            CellParam("gru_cell/candidate/bias", (n,), "bias", 0.0),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the rows of both kernels for the input, side by side, and the biases."""
        kernels = [params["gru_cell/%s/kernel/input" % part] for part in ("gates", "candidate")]
        biases = [params["gru_cell/%s/bias" % part] for part in ("gates", "candidate")]
        return side_by_side(kernels), tf.concat(biases, axis=0)

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the rows of both kernels for the state."""
        return [params["gru_cell/%s/kernel/state" % part] for part in ("gates", "candidate")]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute the gates, then the candidate from the reset state."""
        (h,) = state
        z_gates, z_candidate = tf.split(z, [2 * self.n_out, self.n_out], axis=-1)
        r, u = tf.split(tf.sigmoid(z_gates + times(h, weights[0])), 2, axis=-1)
        c = get_activation(self.opts.activation)(z_candidate + times(r * h, weights[1]))
        h = c + u * (h - c)
        return h, (h,)

    def native_kernel(self, dtype: tf.DType) -> Optional[Kernel]:
        """Return the native GRU."""
        is_there = self.opts.activation == "tanh" and gru_ops(dtype) is not None
        return self._run_native if is_there and pays(GRU_TRIAL, self.n_out, dtype) else None

    def _run_native(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        z, (h0,) = frames.z, frames.state
        w_gates, w_candidate = self.prepare(params, batch=frames.batch, seed=frames.seed)
        options = {"reverse": frames.reverse, "rounded": frames.rounds("gru", self.product_dtype)}
        h, last = native_gru(gru_ops(z.dtype), z, w_gates, w_candidate, h0, frames.ends, **options)
        return h, (last,)


def _case(size: Size) -> Case:
    n = size.width
    inputs = draw(
        (0.5, (size.frames, size.batch, 3 * n)), (n**-0.5, (n, 2 * n)), (n**-0.5, (n, n)), (0.5, (size.batch, n))
    )
    lengths = ragged(size)

    def plain(z: tf.Tensor, w_gates: tf.Tensor, w_candidate: tf.Tensor, h0: tf.Tensor) -> list[tf.Tensor]:
        params = {"gru_cell/gates/kernel/state": w_gates, "gru_cell/candidate/kernel/state": w_candidate}
        h, (last,) = Gru(n, 0).step_loop(params, CellFrames(z, tf.constant(lengths), (h0,)))
        return [zero_padding(h, lengths), last]

    return Case(inputs, in_type(partial(native_gru, lengths=lengths), size.dtype), plain)


GRU_TRIAL = Trial("gru", "gru", __name__, "GRU_TRIAL", _case, "units", dtypes=("float32", "bfloat16", "float16"))
