"""Frames of a padded batch packed behind each other, so that layers which work frame by frame skip the padding."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from returnn_tf.native.fused.pack import native_pack, native_unpack, packed_rows

#: With less padding, copying the frames takes longer than computing all of them.
LEAST_SHARE = 0.1


class FramePacking:
    """The packing of all tensors with the same lengths. Whether there is enough padding for it is decided in each step.

    :param ops: those of `returnn_tf.native.fused.pack`
    :param lengths: int32 [batch]
    :param frames: int32 scalar, size of the padded axis
    """

    def __init__(self, ops: Any, lengths: Any, frames: Any) -> None:
        self._ops, self._lengths, self._frames = ops, lengths, frames

    def pack(self, x: Any) -> Any:
        """Return the frames of [batch, frames, width] as [1, packed frames, width]."""
        y = native_pack(self._ops, x, self._lengths, LEAST_SHARE)
        y.set_shape([1, None, x.shape[-1]])
        return y

    def unpack(self, y: Any) -> Any:
        """Return the inverse of `pack`; the padding is 0 if it was left out."""
        x = native_unpack(self._ops, y, self._lengths, self._frames, LEAST_SHARE)
        x.set_shape([None, None, y.shape[-1]])
        return x

    @cached_property
    def rows(self) -> Any:
        """Return the indices of the packed frames among those of the batch, int64 [packed frames]."""
        return packed_rows(self._ops, self._lengths, self._frames, LEAST_SHARE)
