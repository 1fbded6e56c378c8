"""A batch without sequences, or without frames: empty results, which TensorFlow's own ops refuse to give."""

from __future__ import annotations

import numpy as np
import pytest

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
