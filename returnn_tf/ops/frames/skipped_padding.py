"""Frames of a padded batch packed behind each other, so that layers which work frame by frame skip the padding."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from returnn_tf.native.fused.pack import native_pack, native_unpack, packed_rows

#: With less padding, copying the frames takes longer than computing all of them.
LEAST_SHARE = 0.04


class FramePacking:
    """The packing of all tensors with the same lengths. Whether there is enough padding for it is decided in each step.

    :param ops: those of `returnn_tf.native.fused.pack`
    :param lengths: int32 [batch]
    :param frames: int32 scalar, size of the padded axis
    :param least_share: of padding, with less of which nothing is packed
    """

    def __init__(self, ops: Any, lengths: Any, frames: Any, least_share: float = LEAST_SHARE) -> None:
        self._ops, self._lengths, self._frames, self._least_share = ops, lengths, frames, least_share

    def pack(self, x: Any) -> Any:
        """Return the frames of [batch, frames, width] as [1, packed frames, width]."""
        y = native_pack(self._ops, x, self._lengths, self._least_share)
        y.set_shape([1, None, x.shape[-1]])
        return y

    def unpack(self, y: Any) -> Any:
        """Return the inverse of `pack`; the padding is 0 if it was left out."""
        x = native_unpack(self._ops, y, self._lengths, self._frames, self._least_share)
        x.set_shape([None, None, y.shape[-1]])
        return x

    @cached_property
    def rows(self) -> Any:
        """Return the indices of the packed frames among those of the batch, int64 [packed frames]."""
        return packed_rows(self._ops, self._lengths, self._frames, self._least_share)
