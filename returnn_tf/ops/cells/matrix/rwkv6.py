"""RWKV-6 "Finch": linear attention with a decay for each channel that depends on the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from returnn_tf.config.options import at_least, option
from returnn_tf.ops.cells.base import Params
from returnn_tf.ops.cells.matrix.chunkwise import chunkwise
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.ops.cells.matrix.head_ops import split_heads
from returnn_tf.ops.cells.matrix.rwkv import Rwkv
from returnn_tf.ops.cells.params import CellParam, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.tensor.parts import equal_parts
from returnn_tf.util.lazy_tf import tf

_MIXED = "wkvrg"
_SMALL = "random_uniform_initializer(minval=-0.01, maxval=0.01)"


@register_cell("rwkv6")
class Rwkv6(Rwkv):
    """Time mixing of RWKV-6 (Peng et al. 2024, arXiv 2404.05892).

    Token shift, with the frame before x' (zeros before the first one) and d = x' - x: first ``x0 = x + d mix_x``; then,
    for each c of w, k, v, r, g: ``x_c = x + d (mix_c + tanh(x0 A_c) B_c)``.

    ``r, k, v, g = x_r W_r, x_k W_k, x_v W_v, x_g W_g;  w = exp(-exp(decay + tanh(x_w A) B))``. For each head
    ``y = r (S + diag(bonus) k v)`` and ``S' = diag(w) S + k v``, and ``output = (silu(g) groupnorm(y)) W_o``, with a
    group for each head.

    Weights: ``mix_x``, ``mix_w``, ``mix_k``, ``mix_v``, ``mix_r``, ``mix_g`` [in], ``mix_A`` [in, 5 mix_rank],
    ``mix_B`` [5, mix_rank, in] (in the order w, k, v, r, g), ``decay`` [n], ``decay_A`` [in, decay_rank], ``decay_B``
    [decay_rank, n], ``bonus`` [n], ``W_r``, ``W_k``, ``W_v``, ``W_g`` [in, n], ``W_o`` [n, n], ``norm/scale``,
    ``norm/bias`` [n].

    Decays start between exp(-exp(-6)) and exp(-exp(-1)) over the channels, shares of the frame before and bonus depend
    on layer and num_layers, both as in the published training code; matrices start as in other layers.
    """

    @dataclass
    class Options(Rwkv.Options):
        """The options in ``unit_opts``."""

        mix_rank: int = option(32, help="rank of the data-dependent token shift", check=at_least(1))
        decay_rank: int = option(64, help="rank of the data-dependent decay", check=at_least(1))

    def param_specs(self) -> list[CellParam]:
        """Declare the weights of token shift, decay, bonus, heads, gate and output."""
        n, in_dim, depth, share = self.n_out, self.in_dim, self.depth, self.channel_share()
        mixes = {"x": self.mix(1), "w": self.mix(1), "k": self.mix(1), "v": self.mix(1, 0.3 * depth)}
        mixes.update(r=self.mix(0.5), g=self.mix(0.5))
        (inputs, channels), mixed, rank = self.axes_in_out(), len(_MIXED), self.opts.mix_rank
        bonus = depth * (1 - share) + 0.1 * ((np.arange(n) + 1) % 3 - 1)
        return [
            *(CellParam("mix_" + name, (in_dim,), "fixed", value, (inputs,)) for name, value in mixes.items()),
            CellParam("mix_A", (in_dim, mixed * rank), "fixed", 0.0, (inputs, equal_parts(mixed * rank, rank, "mix"))),
            CellParam("mix_B", (mixed, rank, in_dim), "fixed", _SMALL, (whole(mixed), whole(rank), inputs)),
            CellParam("decay", (n,), "fixed", -6 + 5 * share ** (0.7 + 1.3 * depth), (channels,)),
            CellParam("decay_A", (in_dim, self.opts.decay_rank), "fixed", 0.0, (inputs, whole(self.opts.decay_rank))),
            CellParam("decay_B", (self.opts.decay_rank, n), "fixed", _SMALL, (whole(self.opts.decay_rank), channels)),
            CellParam("bonus", (n,), "fixed", bonus, (channels,)),
            CellParam("W_g", (in_dim, n), "forward", axes=(inputs, channels)),
            *self.projection_specs(),
        ]

    def head_frames(self, params: Params, z: tf.Tensor, seen: Any) -> HeadFrames:
        """Compute receptance, key, value, decay and gate."""
        before, x = seen
        difference = before - x
        hidden = tf.tanh(self.project(x + difference * params["mix_x"], params["mix_A"]))
        mixed = {}
        for i, (name, part) in enumerate(zip(_MIXED, tf.split(hidden, len(_MIXED), -1))):
            mixed[name] = x + difference * (params["mix_" + name] + self.project(part, params["mix_B"][i]))
        r, k, v, gate = (self.project(mixed[name], params["W_" + name]) for name in "rkvg")
        log_decay = -tf.exp(params["decay"] + self.low_rank(params, "decay", mixed["w"], tf.tanh))
        r, k, v, log_decay = (split_heads(x, self.heads) for x in (r, k, v, log_decay))
        bonus = split_heads(params["bonus"], self.heads)
        return HeadFrames(r=r, k=k, v=v, log_decay=log_decay, bonus=bonus, gate=tf.nn.silu(gate))

    def in_chunks(
        self, frames: HeadFrames, state: tf.Tensor, lengths: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run linear attention in chunks."""
        opts = {"lengths": lengths, "chunk": self.opts.chunk, "bonus": frames.bonus}
        return chunkwise(frames.r, frames.k, frames.v, frames.log_decay, state, **opts)

    def read(self, params: Params, y: tf.Tensor, frames: HeadFrames) -> tf.Tensor:
        """Normalise the heads, gate and project them."""
        return self.project(self.group_norm(params, y) * frames.gate, params["W_o"])
