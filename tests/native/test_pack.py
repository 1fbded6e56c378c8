"""Packed frames: values and gradients are in the self-test; here what is not packed, and wrong inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.native.fused.pack import native_pack, native_unpack, pack_ops, packed_rows
from returnn_tf.util.lazy_tf import tf


@pytest.fixture(scope="module")
def ops() -> Any:
    found = pack_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


@pytest.mark.parametrize(
    "lengths,frames,least_share,packed",
    [
        ([4, 2], 4, 0.25, 6),
        ([4, 2], 4, 0.26, 8),
        ([4, 4], 4, 0.0, 8),
        ([0, 0], 4, 0.5, 0),
        ([9, -1], 4, 0.5, 4),
        ([], 0, 0.5, 0),
    ],
    ids=str,
)
def test_share(ops: Any, lengths: Any, frames: int, least_share: float, packed: int) -> None:
    """Lengths beyond the frames are cut, as those of negative numbers."""
    lens = tf.constant(lengths, tf.int32)
    x = tf.random.stateless_normal([len(lengths), frames, 3], [1, 2])
    y = native_pack(ops, x, lens, least_share)
    assert y.shape == (1, packed, 3)
    rows = packed_rows(ops, lens, tf.constant(frames), least_share)
    np.testing.assert_array_equal(tf.gather(tf.reshape(x, [-1, 3]), rows), y[0])
    back = native_unpack(ops, y, lens, tf.constant(frames), least_share)
    mask = tf.sequence_mask(lens, frames)[..., None] if packed != len(lengths) * frames else True
    np.testing.assert_array_equal(back, tf.where(mask, x, 0.0))


def test_wrong_inputs(ops: Any) -> None:
    """Each with its message."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="has to be .batch, frames, width."):
        native_pack(ops, tf.zeros([2, 3, 4]), tf.constant([1]), 0.1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="there are 5 frames, but 3 are needed"):
        native_unpack(ops, tf.zeros([1, 5, 4]), tf.constant([2, 1]), tf.constant(2), 0.1)
