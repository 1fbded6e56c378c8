"""The base class of the time mixing of RWKV-6 and RWKV-7."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import at_least, option
from returnn_tf.ops.cells.base import Params
from returnn_tf.ops.cells.matrix.chunkwise import chunk_option
from returnn_tf.ops.cells.matrix.head_ops import join_heads, normed, split_heads
from returnn_tf.ops.cells.matrix.matrix_cell import MatrixCell
from returnn_tf.ops.cells.params import CellParam, by_head, input_part, whole
from returnn_tf.tensor.parts import Parts
from returnn_tf.util.lazy_tf import tf


class Rwkv(MatrixCell):
    """Time mixing with token shift: a step sees its frame and the one before; the state ``shift`` is the last frame.

    Rows of the state are keys, columns are values, both of head_size.
    """

    takes_classes = False

    @dataclass
    class Options(MatrixCell.Options):
        """The options in ``unit_opts``."""

        head_size: Optional[int] = option(
            None, help="size of a head, which divides n_out; default 64, or n_out if that is less", check=at_least(1)
        )
        layer: int = option(
            0, help="number of this layer in a stack, from 0; only for initial values", check=at_least(0)
        )
        num_layers: int = option(1, help="layers of the stack; only for initial values", check=at_least(1))
        chunk: int = chunk_option()

    def head_shape(self) -> tuple[int, int, int]:
        """Return the heads of head_size, which is by default 64 or n_out if that is less."""
        size = self.opts.head_size or min(64, self.n_out)
        if self.n_out % size:
            raise OptionError(
                "%s: unit %r: n_out %d is not divisible by head_size %d. Change one of them; head_size is in unit_opts."
                % (self.where, self.unit, self.n_out, size)
            )
        if self.opts.layer >= self.opts.num_layers:
            raise OptionError(
                "%s: unit_opts: layer %d needs num_layers of at least %d, not %d."
                % (self.where, self.opts.layer, self.opts.layer + 1, self.opts.num_layers)
            )
        return self.n_out // size, size, size

    @property
    def projected_dim(self) -> int:
        """Return the width of a frame, which is projected only after token shift."""
        return self.in_dim

    @property
    def depth(self) -> float:
        """Return the place in the stack, from 0 for the first to 1 for the last layer."""
        return float(self.opts.layer / max(self.opts.num_layers - 1, 1))

    def mix(self, power: float, shift: float = 0.0) -> NDArray[Any]:
        """Return the initial share of the frame before for each input, ``1 - (i / in)^p - shift``.

        It falls from 1 to 0 over the inputs, with p = power (1 - layer / num_layers).
        """
        power *= 1 - self.opts.layer / self.opts.num_layers
        return 1 - (np.arange(self.in_dim) / self.in_dim) ** power - shift

    def channel_share(self) -> NDArray[Any]:
        """Return the place of each output channel, from 0 to 1: [n]."""
        return np.arange(self.n_out) / max(self.n_out - 1, 1)

    @property
    def channels(self) -> Parts:
        """Return the parts of an axis of size n: the heads."""
        return by_head(self.heads, self.values)

    def axes_in_out(self) -> tuple[Parts, Parts]:
        """Return the parts of the axes of a projection from the input to the heads."""
        return input_part(self.in_dim), self.channels

    def projection_specs(self) -> list[CellParam]:
        """Declare the projections of receptance, key, value and output, and the norm."""
        n = self.n_out
        return [
            *(CellParam("W_" + name, (self.in_dim, n), "forward", axes=self.axes_in_out()) for name in "rkv"),
            CellParam("W_o", (n, n), "forward", axes=(self.channels, whole(n))),
            CellParam("norm/scale", (n,), "fixed", 1.0, (self.channels,)),
            CellParam("norm/bias", (n,), "fixed", 0.0, (self.channels,)),
        ]

    def group_norm(self, params: Params, y: tf.Tensor) -> tf.Tensor:
        """Normalise each head of y [..., heads, m] to mean 0 and variance 1, then scale and shift: [..., n]."""
        scale, bias = (split_heads(params["norm/" + name], self.heads) for name in ("scale", "bias"))
        # Its epsilon is 1e-5 head_size.
        return join_heads(normed(y * self.values**-0.5, scale, bias))

    def low_rank(self, params: Params, name: str, x: tf.Tensor, inner: Optional[Any] = None) -> tf.Tensor:
        """Compute ``f(x A) B`` with the parameters ``<name>_A`` and ``<name>_B``.

        :param inner: f; default the identity
        """
        hidden = self.project(x, params[name + "_A"])
        return self.project(hidden if inner is None else inner(hidden), params[name + "_B"])
