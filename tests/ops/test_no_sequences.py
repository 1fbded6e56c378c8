"""A batch without sequences, or without frames: empty results, which TensorFlow's own ops refuse to give."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.ops.dense.convolution import convolution
from returnn_tf.ops.dense.pooling import pool
from returnn_tf.ops.dense.transposed_convolution import transposed_convolution
from returnn_tf.ops.sequence import ctc
from returnn_tf.ops.sequence.edit_distance import edit_distance, sparse_edit_distance
from returnn_tf.util.lazy_tf import tf

SIZES = [(0, 4), (0, 0), (2, 0)]  # sequences, frames


def lens_of(sequences: int, frames: int) -> tf.Tensor:
    return tf.fill([sequences], frames)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("sequences, frames", SIZES)
def test_ctc(sequences: int, frames: int, graph: bool) -> None:
    """Loss with gradient, and what both decoders find; without frames there are no labels, at no cost."""
    logits, labels = tf.zeros([frames, sequences, 3]), tf.zeros([sequences, 2], tf.int32)

    def compute(logits: tf.Tensor) -> list[tf.Tensor]:
        lens = lens_of(sequences, frames)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = [ctc.ctc_loss(logits, lens, labels, lens_of(sequences, length)) for length in (0, 2)]
            total = tf.add_n([tf.reduce_sum(loss) for loss in losses])
        found = [ctc.greedy_decode(logits, lens), ctc.beam_decode(logits, lens, 2)]
        errors = [sparse_edit_distance(x, tf.cast(x, tf.int32)) for x in found]
        return [*losses, *errors, tape.gradient(total, logits), *(tf.sparse.to_dense(x) for x in found)]

    *of_sequences, gradient, greedy, best = (tf.function(compute, autograph=False) if graph else compute)(logits)
    for value in of_sequences:
        np.testing.assert_array_equal(value, np.zeros([sequences], "float32"))
    assert gradient.shape == logits.shape and greedy.shape == best.shape == (sequences, 0)


@pytest.mark.parametrize("sequences, frames", SIZES)
def test_edit_distance(sequences: int, frames: int) -> None:
    """To two labels, of each sequence; without frames all of them are missing."""
    labels, lens = tf.zeros([sequences, frames], tf.int32), lens_of(sequences, frames)
    others, other_lens = tf.zeros([sequences, 2], tf.int32), lens_of(sequences, 2)
    assert edit_distance(labels, lens, others, other_lens).numpy().tolist() == [2.0] * sequences


def pooled(mode: str, **options: Any) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    given = {"strides": [2], "dilations": [1], "padding": ["same"], **options}
    masked = given.pop("masked", False)
    return lambda x, w: pool(x * w[0, 0, 0], mode, [3], mask=x[:, :, :1] > 0 if masked else None, **given)


def convolved(groups: int = 1, **options: Any) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    given = {"padding": ["same"], "train": True, **options}
    return lambda x, w: convolution(x, w[:, : 4 // groups], groups=groups, **given)


WINDOWS = {
    "conv": convolved(), "conv, strides": convolved(strides=[2]), "conv, dilation": convolved(dilations=[2]),
    "conv, both": convolved(strides=[2], dilations=[2]), "conv, valid": convolved(padding=["valid"]),
    "conv, padding": convolved(padding=[(2, 1)]), "conv, depthwise": convolved(4),
    "conv, depthwise, strides": convolved(4, strides=[2], dilations=[2]), "conv, groups": convolved(2),
    "conv, evaluation": convolved(train=False), "max": pooled("max"), "avg": pooled("avg"),
    "max, valid": pooled("max", padding=["valid"]), "avg, valid": pooled("avg", padding=["valid"]),
    "max, padding": pooled("max", padding=[(1, 1)]), "avg, padding": pooled("avg", padding=[(1, 1)]),
    "max, dilation": pooled("max", dilations=[2], strides=[1]), "avg, dilation": pooled("avg", dilations=[2]),
    "max, few windows": pooled("max", strides=[5]), "avg, few windows": pooled("avg", strides=[5]),
    "max, masked": pooled("max", masked=True), "avg, masked": pooled("avg", masked=True),
    "transposed": lambda x, w: transposed_convolution(x, w, strides=[2], padding="same"),
    "transposed, valid": lambda x, w: transposed_convolution(x, w, strides=[2], padding="valid"),
    "transposed, cut": lambda x, w: transposed_convolution(x, w, strides=[2], padding="valid", remove_padding=[1]),
    "transposed, exact": lambda x, w: transposed_convolution(x, w, strides=[2], padding="same", output_padding=[1]),
}  # fmt: skip

#: Those whose result has frames of the padding alone.
FRAMES_OF_NONE = ("conv, padding", "transposed, valid", "transposed, exact")


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    """Convolution and pooling with their gradients, by one graph; oneDNN's pooling ended the process there."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([3, 4, 4])], autograph=False)
    def compute(x: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        y = WINDOWS[name](x, w)
        return [y, *tf.gradients(y, [x, w])]

    w = tf.ones([3, 4, 4])
    shape = compute(tf.ones([2, 4, 4]), w)[0].shape
    for sequences, frames in SIZES:
        y, dx, dw = compute(tf.ones([sequences, frames, 4]), w)
        assert y.shape[::2] == (sequences, shape[2]) and dx.shape == (sequences, frames, 4)
        if frames:
            assert y.shape[1] == shape[1]
        elif name not in FRAMES_OF_NONE:
            assert y.shape[1] == 0
        assert not dw.numpy().any()
