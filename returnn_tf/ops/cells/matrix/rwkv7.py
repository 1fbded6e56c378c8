"""RWKV-7 "Goose": the delta rule with a decay and a learning rate for each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.ops.cells.base import Params
from returnn_tf.ops.cells.matrix.chunkwise import chunk_option
from returnn_tf.ops.cells.matrix.delta_rule import delta_rule
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.ops.cells.matrix.head_ops import join_heads, split_heads
from returnn_tf.ops.cells.matrix.rwkv import Rwkv
from returnn_tf.ops.cells.params import CellParam, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.util.lazy_tf import tf


@register_cell("rwkv7")
class Rwkv7(Rwkv):
    """Time mixing of RWKV-7 (Peng et al. 2025, arXiv 2503.14456).

    Token shift, with the frame before x' (zeros before the first one): ``x_c = x + (x' - x) mix_c`` for each c of r, w,
    k, v, a, g. Then ``r, k, v = x_r W_r, x_k W_k, x_v W_v`` and

    * the decay ``w = exp(-exp(-0.5) sigmoid(decay + tanh(x_w A_w) B_w))``;
    * the learning rate ``a = sigmoid(rate + (x_a A_a) B_a)`` and the gate ``g = sigmoid(x_g A_g) B_g``;
    * the key to remove ``q = k removal``, divided by its L2 norm in each head, and the key to add
      ``k (1 + (a - 1) replacement)``, called k from here on.

    For each head ``S' = diag(w) S - (a q) (q S) + k v`` and ``y = r S'``. With a group for each head,
    ``output = (g (groupnorm(y) + sum(r bonus k) v)) W_o``.

    The values of the paper's later layers are mixed with those of its first layer. A unit sees only its own input, so
    this is left out, as in the paper's first layer.

    Weights: ``mix_r``, ``mix_w``, ``mix_k``, ``mix_v``, ``mix_a``, ``mix_g`` [in], ``decay``, ``rate``, ``removal``,
    ``replacement``, ``bonus`` [n], ``decay_A`` [in, decay_rank], ``decay_B`` [decay_rank, n], ``rate_A`` [in,
    rate_rank], ``rate_B`` [rate_rank, n], ``gate_A`` [in, gate_rank], ``gate_B`` [gate_rank, n], ``W_r``, ``W_k``,
    ``W_v`` [in, n], ``W_o`` [n, n], ``norm/scale``, ``norm/bias`` [n].

    Shares of the frame before and decays depend on layer and num_layers, and vectors start, as in the published
    training code; the A start at 0, other matrices as in other layers.
    """

    @dataclass
    class Options(Rwkv.Options):
        """The options in ``unit_opts``."""

        decay_rank: int = option(64, help="rank of the decay", check=at_least(1))
        rate_rank: int = option(64, help="rank of the learning rate", check=at_least(1))
        chunk: int = chunk_option(longest=128)
        gate_rank: int = option(128, help="rank of the output gate", check=at_least(1))

    def param_specs(self) -> list[CellParam]:
        """Declare the weights of token shift, decay, rate, removal, replacement, bonus, heads, gate and output."""
        n, in_dim = self.n_out, self.in_dim
        powers = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
        inputs, channels = self.axes_in_out()
        decay = -6.5 + 5 * self.channel_share() ** (0.85 + self.depth**0.5)
        vectors = {"decay": decay, "rate": 0.0, "removal": 0.85, "replacement": 1.0, "bonus": 0.0}
        ranks = {"decay": self.opts.decay_rank, "rate": self.opts.rate_rank, "gate": self.opts.gate_rank}
        return [
            *(
                CellParam("mix_" + name, (in_dim,), "fixed", self.mix(power), (inputs,))
                for name, power in powers.items()
            ),
            *(CellParam(name, (n,), "fixed", value, (channels,)) for name, value in vectors.items()),
            *(
                CellParam(name + "_A", (in_dim, rank), "fixed", 0.0, (inputs, whole(rank)))
                for name, rank in ranks.items()
            ),
            *(
                CellParam(name + "_B", (rank, n), "fixed", None, (whole(rank), channels))
                for name, rank in ranks.items()
            ),
            *self.projection_specs(),
        ]

    def head_frames(self, params: Params, z: tf.Tensor, seen: Any) -> HeadFrames:
        """Compute receptance, keys, value, decay and gate."""
        before, x = seen
        mixed = {name: x + (before - x) * params["mix_" + name] for name in "rwkvag"}
        r, k, v = (self.project(mixed[name], params["W_" + name]) for name in "rkv")
        rate = tf.sigmoid(params["rate"] + self.low_rank(params, "rate", mixed["a"]))
        slow = -0.6065306597126334  # -exp(-0.5)
        log_decay = slow * tf.sigmoid(params["decay"] + self.low_rank(params, "decay", mixed["w"], tf.tanh))
        removed = tf.math.l2_normalize(split_heads(k * params["removal"], self.heads), -1)
        k *= 1 + (rate - 1) * params["replacement"]
        r, k, v, rate, log_decay = (split_heads(x, self.heads) for x in (r, k, v, rate, log_decay))
        gate = self.low_rank(params, "gate", mixed["g"], tf.sigmoid)
        return HeadFrames(r=r, k=k, v=v, log_decay=log_decay, a=-removed, b=rate * removed, gate=gate)

    def in_chunks(
        self, frames: HeadFrames, state: tf.Tensor, lengths: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run the delta rule in chunks."""
        return delta_rule(frames, state, lengths=lengths, chunk=self.opts.chunk)

    def read(self, params: Params, y: tf.Tensor, frames: HeadFrames) -> tf.Tensor:
        """Normalise the heads, add the bonus, gate and project."""
        bonus = split_heads(params["bonus"], self.heads)
        current = tf.reduce_sum(frames.r * bonus * frames.k, -1, keepdims=True) * frames.v
        return self.project((self.group_norm(params, y) + join_heads(current)) * frames.gate, params["W_o"])
