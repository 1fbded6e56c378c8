"""The base class of units with a matrix per head as state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.ops.cells.base import Cell, State
from returnn_tf.ops.cells.time_axis import zero_padding
from returnn_tf.util.lazy_tf import tf


class HeadsCell(Cell):
    """A unit with several heads, and a matrix [keys, values] for each of them as one of its states.

    Attributes: ``heads``, ``keys`` and ``values``, see `head_shape`.
    """

    splits_input_weights = False

    def _check_input(self) -> None:
        super()._check_input()
        self.heads, self.keys, self.values = self.head_shape()

    def head_shape(self) -> tuple[int, int, int]:
        """Return the number of heads, and the dims of the keys and the values of a head.

        :raises ConfigError: the options do not fit n_out
        """
        raise NotImplementedError

    def over_time(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames in parallel, for `all_frames`, which clears the padding.

        :param weights: from `prepare`
        :param z: [time, batch, projected_dim], 0 in the padding
        :return: outputs [time, batch, n], which may be anything in the padding; the last state
        """
        raise NotImplementedError

    def check_divisible(self, dim: float, name: str, heads: int) -> None:
        """Check that heads can share a dim.

        :param name: of the dim, for the error message
        :raises ConfigError: they cannot
        """
        if dim % heads:
            raise OptionError(
                "%s: unit %r: %s %g is not divisible by num_heads %d. Change one of them."
                % (self.where, self.unit, name, dim, heads)
            )

    def state_sizes(self) -> tuple[int, ...]:
        """Return the size of the matrices of all heads."""
        return (self.heads * self.keys * self.values,)

    @property
    def output_state(self) -> Optional[int]:
        """Return None: no state is the output."""
        return None

    def matrices(self, state: tf.Tensor) -> tf.Tensor:
        """Return this state as [batch, heads, keys, values]."""
        return tf.reshape(state, [-1, self.heads, self.keys, self.values])

    @property
    def is_parallel(self) -> bool:
        """Return True: all units of this kind have a form in chunks."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames by `over_time`, with zeros in the padding of input and output."""
        if lengths is None:
            return self.over_time(weights, z, lengths, state, reverse)
        outputs, last = self.over_time(weights, zero_padding(z, lengths), lengths, state, reverse)
        return zero_padding(outputs, lengths), last
