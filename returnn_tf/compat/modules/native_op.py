"""``from returnn.tf.native_op import ...`` (once TFNativeOp): alignments for the functions of configs.

They run as native ops if these are available (see `returnn_tf.ops.sequence.alignments`).
"""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.ops.sequence.alignments import acceptor_alignment, acceptor_path, ctc
from returnn_tf.ops.sequence.ctc_variants import softmax_gradient
from returnn_tf.ops.sequence.edge_lists import acceptors_of_edge_list, ctc_edge_list
from returnn_tf.util.lazy_tf import tf

register_compat(__name__, "returnn.tf.native_op", "TFNativeOp")

__all__ = ["ctc_loss", "ctc_loss_viterbi", "fast_baum_welch", "fast_viterbi", "get_ctc_fsa_fast_bw"]


def fast_baum_welch(
    am_scores: Any, edges: Any, weights: Any, start_end_states: Any, float_idx: Any, state_buffer: Any = None
) -> tuple[Any, Any]:
    """Compute posteriors over automata, summed over all their paths. Scores are negative log probabilities, in and out.

    :param am_scores: [time, batch, classes]
    :param edges: int32 [4, edges]: from, to, class, sequence
    :param weights: [edges]
    :param start_end_states: int32 [2, batch]
    :param float_idx: [time, batch], 1 or True where a sequence has a frame
    :param state_buffer: not needed
    :return: (posteriors [time, batch, classes], infinity for a probability of 0; sums over all paths [time, batch],
        the same in all frames of a sequence, 0 in padded ones)
    """
    del state_buffer
    inside = tf.cast(float_idx, tf.bool)
    lens = tf.reduce_sum(tf.cast(inside, tf.int32), axis=0)
    acceptors = acceptors_of_edge_list(edges, weights, start_end_states)
    posteriors, total = acceptor_alignment(-am_scores, lens, acceptors)
    return -tf.math.log(posteriors), tf.where(inside, -total[None], tf.zeros_like(am_scores[:, :, 0]))


def fast_viterbi(am_scores: Any, am_seq_len: Any, edges: Any, weights: Any, start_end_states: Any) -> tuple[Any, Any]:
    """Compute the best paths through automata. Scores are log probabilities.

    :param am_scores: [time, batch, classes]
    :param am_seq_len: int32 [batch]
    :param edges: int32 [4, edges]: from, to, class, sequence
    :param weights: [edges]
    :param start_end_states: int32 [2, batch]
    :return: (classes int32 [time, batch], 0 in padded frames; scores [batch])
    """
    acceptors = acceptors_of_edge_list(edges, -weights, start_end_states)
    return acceptor_path(am_scores, tf.cast(am_seq_len, tf.int32), acceptors)


def get_ctc_fsa_fast_bw(targets: Any, seq_lens: Any, blank_idx: int, label_loop: bool = True) -> tuple[Any, Any, Any]:
    """Return the automata of CTC, for `fast_baum_welch` and `fast_viterbi`.

    :param targets: int [batch, labels]
    :param seq_lens: int32 [batch]
    :param label_loop: False: a label lasts one frame
    :return: (edges, weights, start_end_states)
    """
    return ctc_edge_list(targets, seq_lens, blank_idx, label_loop=label_loop)


def ctc_loss(
    logits: Any,
    logits_seq_lens: Any,
    logits_time_major: bool,
    targets: Any,
    targets_seq_lens: Any,
    ctc_merge_repeated: bool = True,
    logits_normalize: bool = True,
    grad_wrt_softmax_in: bool = True,
    blank_index: int = -1,
) -> Any:
    """Compute ``-log p(targets | logits)``, the sum over all alignments (Graves et al. 2006).

    :param logits: [time, batch, classes] or [batch, time, classes]
    :param logits_seq_lens: int32 [batch]
    :param targets: int [batch, labels]
    :param targets_seq_lens: int32 [batch]
    :param ctc_merge_repeated: a label can last more than one frame
    :param logits_normalize: else they are logs of probabilities already
    :param grad_wrt_softmax_in: without ``logits_normalize``: whether the gradient is that of a softmax, softmax(logits)
        - alignment; False: - alignment
    :return: [batch]
    """
    scores = logits if logits_time_major else tf.transpose(logits, [1, 0, 2])
    lens, labels, label_lens = _int32(logits_seq_lens, targets, targets_seq_lens)
    loss = ctc(
        scores, lens, labels, label_lens, blank=_blank(scores, blank_index), normalized=not logits_normalize,
        label_loop=ctc_merge_repeated,
    )  # fmt: skip
    if grad_wrt_softmax_in and not logits_normalize:
        loss += softmax_gradient(scores, lens, tf.fill(tf.shape(lens), True))
    return loss


def ctc_loss_viterbi(
    logits: Any, logits_seq_lens: Any, logits_time_major: bool, targets: Any, targets_seq_lens: Any,
    blank_index: int = -1,
) -> Any:  # fmt: skip
    """Compute the negative log probability of the best alignment; parameters as in `ctc_loss`."""
    scores = logits if logits_time_major else tf.transpose(logits, [1, 0, 2])
    blank = _blank(scores, blank_index)
    return ctc(scores, *_int32(logits_seq_lens, targets, targets_seq_lens), blank=blank, max_approx=True)


def _int32(*arrays: Any) -> list[Any]:
    return [tf.cast(x, tf.int32) for x in arrays]


def _blank(scores: Any, index: int) -> int:
    return index % int(scores.shape[-1])
