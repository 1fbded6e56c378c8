"""The alignments which configs import from ``returnn.tf.native_op``, against those of the layers."""

import numpy as np
import pytest

from returnn_tf.compat.modules import native_op
from returnn_tf.config.user_files import resolving_imports
from returnn_tf.ops.sequence import alignments
from returnn_tf.ops.sequence.fast_bw import ctc_topology
from returnn_tf.util.lazy_tf import tf

LENS, LABELS, LABEL_LENS, BLANK = [6, 4, 0], [[0, 1, 1], [2, 0, 0], [0, 0, 0]], [3, 1, 0], 3


def scores():
    return tf.nn.log_softmax(np.random.default_rng(1).normal(size=(6, 3, 4)).astype("float32"))


def test_names():
    with resolving_imports():
        from returnn.tf.native_op import fast_viterbi
        from TFNativeOp import ctc_loss
    assert fast_viterbi is native_op.fast_viterbi and ctc_loss is native_op.ctc_loss


def test_fast_baum_welch():
    edges, weights, ends = native_op.get_ctc_fsa_fast_bw(tf.constant(LABELS), LABEL_LENS, BLANK)
    inside = tf.sequence_mask(LENS, 6, dtype=tf.float32)
    posteriors, sums = native_op.fast_baum_welch(-scores(), edges, weights, ends, tf.transpose(inside))
    topology = ctc_topology(tf.constant(LABELS), tf.constant(LABEL_LENS), BLANK)
    expected, total = alignments.soft_alignment(scores(), tf.constant(LENS), topology)
    np.testing.assert_allclose(np.exp(-posteriors), expected, atol=1e-5)
    for b in range(2):
        np.testing.assert_allclose(sums[: LENS[b], b], -np.repeat(total[b], LENS[b]), rtol=1e-5)
        assert not sums[LENS[b] :, b].numpy().any()


def test_fast_viterbi():
    edges, weights, ends = native_op.get_ctc_fsa_fast_bw(tf.constant(LABELS), LABEL_LENS, BLANK, label_loop=False)
    path, total = native_op.fast_viterbi(scores(), LENS, edges, weights - 0.5, ends)
    topology = ctc_topology(tf.constant(LABELS), tf.constant(LABEL_LENS), BLANK, label_loop=False)
    expected, expected_total = alignments.best_alignment(scores(), tf.constant(LENS), topology)
    np.testing.assert_array_equal(path[:, :2], expected[:, :2])
    np.testing.assert_allclose(total[:2], expected_total[:2] - 0.5 * np.array(LENS[:2]), rtol=1e-5)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("best", [False, True])
def test_ctc_loss(best, time_major):
    logits = 3.0 * scores()
    given = logits if time_major else tf.transpose(logits, [1, 0, 2])
    function = native_op.ctc_loss_viterbi if best else native_op.ctc_loss
    loss = function(given, LENS, time_major, tf.constant(LABELS), LABEL_LENS)
    sizes = [tf.constant(x) for x in (LENS, LABELS, LABEL_LENS)]
    expected = alignments.ctc(logits, *sizes, blank=BLANK, max_approx=best)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("wrt_softmax", [False, True])
def test_gradient_of_normalized_scores(wrt_softmax):
    x = scores()
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = native_op.ctc_loss(
            x, LENS, True, tf.constant(LABELS), LABEL_LENS, logits_normalize=False, grad_wrt_softmax_in=wrt_softmax
        )
    topology = ctc_topology(tf.constant(LABELS), tf.constant(LABEL_LENS), BLANK)
    alignment, _ = alignments.soft_alignment(x, tf.constant(LENS), topology)
    inside = tf.transpose(tf.sequence_mask(LENS, 6, dtype=tf.float32))[:, :, None]
    expected = (tf.exp(x) if wrt_softmax else 0.0) * inside - alignment
    np.testing.assert_allclose(tape.gradient(loss, x), expected, atol=1e-5)
