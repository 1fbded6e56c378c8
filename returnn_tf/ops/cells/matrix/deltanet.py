"""DeltaNet: a linear memory that replaces what it holds for a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.ops.cells.base import Params
from returnn_tf.ops.cells.matrix.causal_convolution import causal_convolution
from returnn_tf.ops.cells.matrix.chunkwise import chunk_option
from returnn_tf.ops.cells.matrix.delta_rule import delta_rule
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.ops.cells.matrix.head_ops import join_heads, normed, split_heads
from returnn_tf.ops.cells.matrix.matrix_cell import MatrixCell
from returnn_tf.ops.cells.matrix.recent_frames import shift_in
from returnn_tf.ops.cells.params import CellParam, by_head, input_part, taps, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.util.lazy_tf import tf


@register_cell("deltanet")
class DeltaNet(MatrixCell):
    """DeltaNet (Yang et al. 2024, arXiv 2406.06484).

    ``q, k, v, beta = x W``; q, k and v pass a short convolution over the last conv_size frames, for each channel by
    itself, and silu; q and k are divided by their L2 norm in each head; ``beta = sigmoid(beta)`` for each head. Then
    ``S' = S + beta k (v - k S)`` and ``y = q S'`` for each head, and ``output = (y / rms(y) norm/scale) W_o``, with the
    root mean square over each head.

    Weights: ``W`` [in, 2 keys + values + heads], ``conv`` [conv_size, 2 keys + values], of which the last row is for
    the current frame, ``norm/scale`` [values / heads], ``W_o`` [values, n].

    States: ``shift`` [(conv_size - 1) * (2 keys + values)], the last frames before the convolution, and ``S`` [keys *
    values / heads], row by row.
    """

    @dataclass
    class Options(MatrixCell.Options):
        """The options in ``unit_opts``."""

        num_heads: int = option(4, help="number of heads", check=at_least(1))
        key_dim: Optional[int] = option(None, help="size of all keys together; default n_out", check=at_least(1))
        value_dim: Optional[int] = option(None, help="size of all values together; default n_out", check=at_least(1))
        conv_size: int = option(
            4, help="frames that the short convolution sees, with the current one", check=at_least(2)
        )
        chunk: int = chunk_option()

    def head_shape(self) -> tuple[int, int, int]:
        """Return the heads, and the dims of keys and values by the options or else by n_out."""
        heads, dims = self.opts.num_heads, []
        for name in ("key_dim", "value_dim"):
            given = getattr(self.opts, name)
            self.check_divisible(given or self.n_out, name if given else "n_out", heads)
            dims.append((given or self.n_out) // heads)
        return heads, dims[0], dims[1]

    @property
    def shift_frames(self) -> int:
        """Return the number of frames before the current one in the convolution."""
        return int(self.opts.conv_size) - 1

    @property
    def projected_dim(self) -> int:
        """Return the width of queries, keys, values and rates."""
        return self.shift_dim + self.heads

    @property
    def shift_dim(self) -> int:
        """Return the width of the part that is convolved: queries, keys and values."""
        return self.heads * (2 * self.keys + self.values)

    def param_specs(self) -> list[CellParam]:
        """Declare the weights of input, convolution, normalisation and output."""
        bound = self.opts.conv_size**-0.5
        convolved = [*by_head(self.heads, self.keys, *"qk"), *by_head(self.heads, self.values, "v")]
        columns = [*convolved, *by_head(self.heads, 1, "rate")]
        values = by_head(self.heads, self.values)
        return [
            CellParam("W", (self.in_dim, self.projected_dim), "forward", axes=(input_part(self.in_dim), columns)),
            CellParam(
                "conv",
                (self.opts.conv_size, self.shift_dim),
                "fixed",
                "random_uniform_initializer(minval=%r, maxval=%r)" % (-bound, bound),
                (taps(self.opts.conv_size), convolved),
            ),
            CellParam("norm/scale", (self.values,), "fixed", 1.0),
            CellParam("W_o", (self.heads * self.values, self.n_out), "forward", axes=(values, whole(self.n_out))),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W``; there is no bias."""
        return params["W"], None

    def look_back(
        self, params: Params, x: tf.Tensor, recent: tf.Tensor, lengths: Optional[tf.Tensor]
    ) -> tuple[Any, tf.Tensor]:
        """Compute the convolution."""
        if x.shape.rank == 3:
            return causal_convolution(x, params["conv"], recent, lengths)
        frames, shift = shift_in(x, recent, self.shift_frames)
        return tf.add_n([frame * params["conv"][i] for i, frame in enumerate(frames)]), shift

    def head_frames(self, params: Params, z: tf.Tensor, seen: Any) -> HeadFrames:
        """Compute queries, keys, values and rates."""
        q, k, v = tf.split(tf.nn.silu(seen), [self.heads * d for d in (self.keys, self.keys, self.values)], -1)
        q, k, v = (split_heads(x, self.heads) for x in (q, k, v))
        q, k = tf.math.l2_normalize(q, -1), tf.math.l2_normalize(k, -1)
        b = tf.sigmoid(z[..., self.shift_dim :, tf.newaxis]) * k
        return HeadFrames(r=q, k=b, v=v, a=-k, b=b)

    def in_chunks(
        self, frames: HeadFrames, state: tf.Tensor, lengths: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run the delta rule in chunks."""
        return delta_rule(frames, state, lengths=lengths, chunk=self.opts.chunk)

    def read(self, params: Params, y: tf.Tensor, frames: HeadFrames) -> tf.Tensor:
        """Normalise the heads and project them."""
        return self.project(join_heads(normed(y, params["norm/scale"])), params["W_o"])
