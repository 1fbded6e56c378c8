"""Units with a matrix per head as state, which also see a few frames before the current one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.ops.cells.base import Params, State
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.ops.cells.matrix.head_ops import join_heads
from returnn_tf.ops.cells.matrix.heads_cell import HeadsCell
from returnn_tf.ops.cells.matrix.recent_frames import shift_in, with_recent_frames
from returnn_tf.ops.cells.time_axis import running_order
from returnn_tf.util.lazy_tf import tf


class MatrixCell(HeadsCell):
    """A unit that computes from the current and a few recent frames what changes the matrices of its heads.

    States: ``shift``, the recent frames, the oldest first [shift_frames * shift_dim]; ``S`` [heads * keys * values].
    """

    state_keys = ("shift", "S")

    @property
    def shift_frames(self) -> int:
        """Return the number of frames before the current one that a step sees."""
        return 1

    @property
    def shift_dim(self) -> int:
        """Return the number of columns of the projected input that the recent frames keep."""
        return self.projected_dim

    def look_back(
        self, params: Params, x: tf.Tensor, recent: tf.Tensor, lengths: Optional[tf.Tensor]
    ) -> tuple[Any, tf.Tensor]:
        """Return the recent frames as `head_frames` needs them: here these frames, and the current one.

        :param x: [time, batch, shift_dim] or, in a step, [batch, shift_dim]: the first columns of the projected input
        :param recent: the state before the first frame
        :param lengths: int [batch]; None: all sequences have all frames
        :return: that, and the state at the end of each sequence
        """
        if x.shape.rank == 2:
            return shift_in(x, recent, self.shift_frames)
        return with_recent_frames(x, recent, self.shift_frames, lengths)

    def head_frames(self, params: Params, z: tf.Tensor, seen: Any) -> HeadFrames:
        """Compute what changes the matrices.

        :param z: [..., projected_dim], where ``...`` is batch, or time and batch
        :param seen: from `look_back`
        """
        raise NotImplementedError

    def in_chunks(
        self, frames: HeadFrames, state: tf.Tensor, lengths: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Compute `HeadFrames.step` for all frames.

        :param frames: [time, batch, heads, d]
        :param state: [batch, heads, keys, values]
        :param lengths: int [batch]; None: all sequences have all frames
        :return: y [time, batch, heads, values], and the state at the end of each sequence
        """
        raise NotImplementedError

    def read(self, params: Params, y: tf.Tensor, frames: HeadFrames) -> tf.Tensor:
        """Return the output [..., n_out] of what the heads read, y [..., heads, values]."""
        raise NotImplementedError

    def state_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the recent frames and of the matrices."""
        return (self.shift_frames * self.shift_dim, *super().state_sizes())

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return all parameters."""
        return [params[spec.name] for spec in self.param_specs()]

    def _named(self, weights: Sequence[tf.Tensor]) -> Params:
        return {spec.name: weight for spec, weight in zip(self.param_specs(), weights)}

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Look back at the recent frames, and update and read the matrices of the heads."""
        params = self._named(weights)
        seen, shift = self.look_back(params, z[:, : self.shift_dim], state[0], None)
        heads = self.head_frames(params, z, seen)
        y, last = heads.step(self.matrices(state[1]))
        return self.read(params, y, heads), (shift, join_heads(last, 3))

    def over_time(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Look back in all frames at once, and update and read the matrices in chunks."""
        params = self._named(weights)
        z = running_order(z, lengths, reverse)
        seen, shift = self.look_back(params, z[:, :, : self.shift_dim], state[0], lengths)
        heads = self.head_frames(params, z, seen)
        y, last = self.in_chunks(heads, self.matrices(state[1]), lengths)
        return running_order(self.read(params, y, heads), lengths, reverse), (shift, join_heads(last, 3))
