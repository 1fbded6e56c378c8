"""Native alignments of labels to frames: full sums and best paths over chains of states, and CTC with its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def align_ops() -> Optional[Any]:
    """Return the ops, or None if they are not available here (a warning gives the reason)."""
    return native_op("align", self_test)


def native_soft_alignment(
    ops: Any,
    scores: tf.Tensor,
    lens: tf.Tensor,
    classes: tf.Tensor,
    num_states: tf.Tensor,
    loop: tf.Tensor,
    skip: tf.Tensor,
    *,
    optional_ends: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute posteriors of all classes and the full-sum score over chains of states (Baum-Welch).

    :param ops: what `align_ops` returned
    :param scores: float32 [time, batch, classes], log scores
    :param lens: int32 [batch], frames
    :param classes: int32 [batch, states], the class that each state emits
    :param num_states: int32 [batch]
    :param loop: bool [batch, states], whether the state may be repeated
    :param skip: bool [batch, states], whether the state may be entered from two states before
    :param optional_ends: whether the first and the last state may be left out
    :return: (probabilities [time, batch, classes], 0 in padded frames and where there is no alignment; log of the sum
        over all alignments [batch], -inf where there is none). No gradients.
    """
    result = ops.rtf_chain_soft(
        scores=tf.stop_gradient(scores), lengths=lens, classes=classes, num_states=num_states, loop=loop, skip=skip,
        optional_ends=optional_ends,
    )  # fmt: skip
    return result.posteriors, result.total


def native_best_alignment(
    ops: Any,
    scores: tf.Tensor,
    lens: tf.Tensor,
    classes: tf.Tensor,
    num_states: tf.Tensor,
    loop: tf.Tensor,
    skip: tf.Tensor,
    *,
    optional_ends: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the class of every frame on the best path, and its score (Viterbi).

    Parameters: see `native_soft_alignment`.

    :return: (int32 [time, batch], 0 in padded frames; [batch], -inf where there is no alignment). No gradients.
    """
    result = ops.rtf_chain_best(
        scores=tf.stop_gradient(scores), lengths=lens, classes=classes, num_states=num_states, loop=loop, skip=skip,
        optional_ends=optional_ends,
    )  # fmt: skip
    return result.path, result.total


def native_ctc(
    ops: Any,
    scores: tf.Tensor,
    lens: tf.Tensor,
    labels: tf.Tensor,
    label_lens: tf.Tensor,
    *,
    blank: int,
    label_loop: bool = True,
    normalized: bool = False,
    softmax_without_alignment: bool = False,
) -> tf.Tensor:
    """Compute ``-log p(labels | scores)``, the sum over all alignments (Graves et al. 2006), with its gradient.

    :param ops: what `align_ops` returned
    :param scores: float32 [time, batch, classes]; logits, or log probabilities if ``normalized``
    :param lens: int32 [batch]
    :param labels: int32 [batch, labels]
    :param label_lens: int32 [batch]
    :param label_loop: False: a label lasts one frame, and equal labels need no blank in between (Sak et al. 2017)
    :param softmax_without_alignment: the gradient for sequences with too few frames is softmax(scores), not 0
    :return: [batch]; 0 where there are too few frames
    """

    @custom_gradient
    def run(scores: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        result = ops.rtf_ctc(
            scores=scores, lengths=lens, labels=labels, label_lengths=label_lens, blank=blank, label_loop=label_loop,
            normalized=normalized, softmax_without_alignment=softmax_without_alignment,
        )  # fmt: skip
        return result.loss, lambda grad: tf.math.multiply_no_nan(result.gradient, grad[None, :, None])

    return run(scores)


def native_acceptor_alignment(
    ops: Any, scores: tf.Tensor, lens: tf.Tensor, edges: tf.Tensor, costs: tf.Tensor, num_states: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute posteriors of all classes and the full-sum score over finite-state acceptors, one per sequence.

    :param scores: float32 [time, batch, classes], log scores
    :param lens: int32 [batch], frames
    :param edges: int32 [batch, edges, 3]: from, to, class; class -1 marks unused entries
    :param costs: float32 [batch, edges], negative log probabilities
    :param num_states: int32 [batch]; state 0 is the initial, the last one the final state
    :return: see `native_soft_alignment`
    """
    result = ops.rtf_acceptor_soft(
        scores=tf.stop_gradient(scores), lengths=lens, edges=edges, costs=costs, num_states=num_states
    )
    return result.posteriors, result.total


def native_acceptor_path(
    ops: Any, scores: tf.Tensor, lens: tf.Tensor, edges: tf.Tensor, costs: tf.Tensor, num_states: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the class of every frame on the best path through finite-state acceptors, and its score (Viterbi).

    Parameters: see `native_acceptor_alignment`.

    :return: see `native_best_alignment`
    """
    result = ops.rtf_acceptor_best(
        scores=tf.stop_gradient(scores), lengths=lens, edges=edges, costs=costs, num_states=num_states
    )
    return result.path, result.total


def native_transducer(
    ops: Any,
    scores: tf.Tensor,
    lens: tf.Tensor,
    labels: tf.Tensor,
    label_lens: tf.Tensor,
    *,
    blank: int,
    label_takes_frame: bool = False,
    normalized: bool = False,
) -> tf.Tensor:
    """Compute ``-log p(labels | scores)`` of a transducer (Graves 2012), with its gradient.

    :param scores: float32 [batch, time, labels + 1, classes]; logits, or log probabilities if ``normalized``
    :param lens: int32 [batch]
    :param labels: int32 [batch, labels]
    :param label_lens: int32 [batch]
    :param label_takes_frame: a label consumes a frame, as the blank does (Sak et al. 2017)
    :return: [batch]; 0 with a gradient of 0 where there is no alignment
    """

    @custom_gradient
    def run(scores: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        result = ops.rtf_transducer(
            scores=scores, lengths=lens, labels=labels, label_lengths=label_lens, blank=blank,
            label_takes_frame=label_takes_frame, normalized=normalized,
        )  # fmt: skip
        return result.loss, lambda grad: tf.math.multiply_no_nan(result.gradient, grad[:, None, None, None])

    return run(scores)


@register_op(
    "align",
    kernels=(
        "align/chain_cpu.cc",
        "align/acceptor_cpu.cc",
        "align/acceptor_best_cpu.cc",
        "align/transducer_cpu.cc",
    ),
    bindings=("align/chain_op.cc", "align/lattice_op.cc"),
    cuda=(
        "align/chain_cuda.cu",
        "align/viterbi_cuda.cu",
        "align/acceptor_cuda.cu",
        "align/acceptor_best_cuda.cu",
        "align/transducer_cuda.cu",
    ),
    replaces=("FastBaumWelchOp", "FastViterbiOp"),
)
def self_test(ops: Any) -> None:
    """Compare CTC and its gradient with the sum over all enumerated paths.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    lens, labels, label_lens = [4, 3, 2], [[0, 1], [1, 1], [0, 0]], [2, 2, 1]

    def op(scores: tf.Tensor) -> list[tf.Tensor]:
        return [native_ctc(ops, scores, lens, labels, label_lens, blank=2)]

    def formula(scores: NDArray[Any]) -> list[NDArray[Any]]:
        scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        sums = [
            sum(
                np.exp(scores[range(n), b, path].sum())
                for path in itertools.product(range(3), repeat=n)
                if _read(path) == labels[b][: label_lens[b]]
            )
            for b, n in enumerate(lens)
        ]
        return [-np.log(sums)]

    compare("alignments", op, formula, [rng.normal(0, 1, (4, 3, 3))])


def _read(path: Sequence[int], blank: int = 2) -> Any:
    """Return the labels of a CTC path."""
    return [label for label, _ in itertools.groupby(path) if label != blank]
