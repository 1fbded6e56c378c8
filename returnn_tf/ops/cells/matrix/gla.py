"""Gated linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.options import above, at_least, option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.matrix.chunkwise import chunk_option, chunkwise
from returnn_tf.ops.cells.matrix.head_ops import join_heads, normed, one_frame, split_heads
from returnn_tf.ops.cells.matrix.heads_cell import HeadsCell
from returnn_tf.ops.cells.params import CellParam, by_head, input_part, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.tensor.parts import total_size
from returnn_tf.util.lazy_tf import tf

_INPUT_WEIGHTS = ("W_q", "W_k", "W_v", "W_r", "W_alpha_1")


@register_cell("gla")
class GatedLinearAttention(HeadsCell):
    """Gated linear attention (Yang et al. 2023, arXiv 2312.06635), with a matrix S per head as state.

    ``q = x W_q / sqrt(keys);  k = x W_k;  v = x W_v;  alpha = sigmoid(x W_alpha_1 W_alpha_2 + b_alpha)^(1 / tau)``,
    split into heads; ``S' = diag(alpha) S + k v^T;  o = norm(S'^T q)`` in each head;
    ``y = (swish(x W_r + b_r) o) W_o``

    The norm is ``o / rms(o)``, times a scale for each column of a head. Over all frames it is computed in chunks.

    Weights, with ``K = n key_ratio``: ``W_q``, ``W_k`` [in, K], ``W_v``, ``W_r`` [in, n], ``W_alpha_1`` [in, rank],
    ``W_alpha_2`` [rank, K], ``W_o`` [n, n] (glorot_uniform); ``b_alpha`` [K], ``b_r`` [n] (0); ``norm/scale``
    [n / heads] (1), and for the norm by mean and variance ``norm/bias`` [n / heads] (0).
    State: S [heads * K / heads * n / heads], row by row.
    """

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        num_heads: int = option(4, check=at_least(1), help="number of heads; n_out is a multiple of it")
        key_ratio: float = option(0.5, check=above(0), help="dim of all keys, as a multiple of n_out")
        gate_rank: int = option(16, check=at_least(1), help="rank of the weights of the decay alpha")
        gate_temperature: float = option(16.0, check=above(0), help="tau: the higher, the closer is alpha to 1")
        norm: str = option("rms", choices=("rms", "layer"), help="of the output of each head: layer: minus the mean")
        chunk: int = chunk_option()

    def head_shape(self) -> tuple[int, int, int]:
        """Return the heads, with keys that share ``n_out * key_ratio``, and values that share n_out."""
        keys = self.n_out * self.opts.key_ratio
        keys = round(keys, 6) or keys  # 100 * 0.29 is 28.999999999999996
        self.check_divisible(self.n_out, "n_out", self.opts.num_heads)
        self.check_divisible(keys, "the dim of all keys, n_out * key_ratio =", self.opts.num_heads)
        return self.opts.num_heads, int(keys) // self.opts.num_heads, self.n_out // self.opts.num_heads

    @property
    def _splits(self) -> list[int]:
        """Return the dims of what is projected, in the order of `_INPUT_WEIGHTS`."""
        keys = self.heads * self.keys
        return [keys, keys, self.n_out, self.n_out, self.opts.gate_rank]

    @property
    def projected_dim(self) -> int:
        """Return the dim of q, k, v, r and the input of ``W_alpha_2`` together."""
        return sum(self._splits)

    def param_specs(self) -> list[CellParam]:
        """Declare the weights of queries, keys, values and gates, and of the output."""
        n, head, keys, rank = self.n_out, self.values, self.heads * self.keys, self.opts.gate_rank
        of_keys, of_values, inputs = by_head(self.heads, self.keys), by_head(self.heads, head), input_part(self.in_dim)
        columns = (of_keys, of_keys, of_values, of_values, whole(rank))
        return [
            *(
                CellParam(name, (self.in_dim, total_size(parts)), "forward", axes=(inputs, parts))
                for name, parts in zip(_INPUT_WEIGHTS, columns)
            ),
            CellParam("W_alpha_2", (rank, keys), "forward", axes=(whole(rank), of_keys)),
            CellParam("b_alpha", (keys,), "bias", 0.0, (of_keys,)),
            CellParam("b_r", (n,), "bias", 0.0, (of_values,)),
            CellParam("norm/scale", (head,), "fixed", 1.0),
            *([CellParam("norm/bias", (head,), "bias", 0.0)] if self.opts.norm == "layer" else []),
            CellParam("W_o", (n, n), "forward", axes=(of_values, whole(n))),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return all matrices that the input is multiplied by, side by side; there is no bias."""
        return tf.concat([params[name] for name in _INPUT_WEIGHTS], axis=1), None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return all but the input weights."""
        return [params[spec.name] for spec in self.param_specs() if spec.name not in _INPUT_WEIGHTS]

    def _heads(self, weights: Sequence[tf.Tensor], z: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return q, k, v and the log decays [..., heads, d], and the output gate [..., n]."""
        w_alpha, b_alpha, b_r = weights[:3]
        q, k, v, r, low_rank = tf.split(z, self._splits, axis=-1)
        log_alpha = tf.math.log_sigmoid(self.project(low_rank, w_alpha, b_alpha)) * (1 / self.opts.gate_temperature)
        q *= self.keys**-0.5
        q, k, v, log_alpha = (split_heads(x, self.heads) for x in (q, k, v, log_alpha))
        return q, k, v, log_alpha, tf.nn.silu(r + b_r)

    def _output(self, weights: Sequence[tf.Tensor], o: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        """Compute y [..., n] from what the heads read, o [..., heads, n / heads]."""
        *norm, w_o = weights[3:]
        return self.project(gate * join_heads(normed(o, *norm)), w_o)

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Update and read the matrices of the heads."""
        q, k, v, log_alpha, gate = self._heads(weights, z)
        o, last = one_frame(q, k, v, log_alpha, self.matrices(state[0]))
        return self._output(weights, o, gate), (join_heads(last, 3),)

    def over_time(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Run gated linear attention in chunks."""
        q, k, v, log_alpha, gate = self._heads(weights, z)
        before, chunk = self.matrices(state[0]), self.opts.chunk
        o, last = chunkwise(q, k, v, log_alpha, before, lengths=lengths, reverse=reverse, chunk=chunk)
        return self._output(weights, o, gate), (join_heads(last, 3),)
