"""Alignments for layers and losses: native ops where available, else plain TensorFlow.

In float32 only. With a GPU the ops run there (see `returnn_tf.native.library`).
"""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.native.decoding import align as native
from returnn_tf.ops.sequence import fast_bw, fsa
from returnn_tf.ops.sequence.ctc_variants import ctc_variant
from returnn_tf.ops.sequence.fast_bw import Topology
from returnn_tf.ops.sequence.fsa import Acceptors
from returnn_tf.ops.sequence.transducer import transducer_loss
from returnn_tf.util.lazy_tf import tf


def soft_alignment(scores: Any, lens: Any, topology: Topology) -> tuple[Any, Any]:
    """Compute a soft alignment; see `returnn_tf.ops.sequence.fast_bw.soft_alignment`."""
    ops = _ops_for(scores)
    if ops is None:
        return fast_bw.soft_alignment(scores, lens, topology)
    return native.native_soft_alignment(ops, scores, _int32(lens), **_states(topology))


def best_alignment(scores: Any, lens: Any, topology: Topology) -> tuple[Any, Any]:
    """Compute the best alignment; see `returnn_tf.ops.sequence.fast_bw.best_alignment`."""
    ops = _ops_for(scores)
    if ops is None:
        return fast_bw.best_alignment(scores, lens, topology)
    return native.native_best_alignment(ops, scores, _int32(lens), **_states(topology))


def acceptor_alignment(scores: Any, lens: Any, acceptors: Acceptors) -> tuple[Any, Any]:
    """Compute a soft alignment; see `returnn_tf.ops.sequence.fsa.soft_alignment_of_acceptors`."""
    ops = _ops_for(scores)
    if ops is None:
        return fsa.soft_alignment_of_acceptors(scores, lens, acceptors)
    return native.native_acceptor_alignment(
        ops, scores, _int32(lens), acceptors.edges, acceptors.costs, acceptors.num_states
    )


def acceptor_path(scores: Any, lens: Any, acceptors: Acceptors) -> tuple[Any, Any]:
    """Compute the best path; see `returnn_tf.ops.sequence.fsa.best_path_of_acceptors`."""
    ops = _ops_for(scores)
    if ops is None:
        return fsa.best_path_of_acceptors(scores, lens, acceptors)
    return native.native_acceptor_path(
        ops, scores, _int32(lens), acceptors.edges, acceptors.costs, acceptors.num_states
    )


def transducer(
    scores: Any,
    lens: Any,
    labels: Any,
    label_lens: Any,
    *,
    blank: int,
    label_takes_frame: bool = False,
    normalized: bool = False,
) -> Any:
    """Compute the transducer loss; see `returnn_tf.ops.sequence.transducer.transducer_loss`."""
    ops = _ops_for(scores)
    inputs = (scores, _int32(lens), _int32(labels), _int32(label_lens))
    options: dict[str, Any] = {"blank": blank, "label_takes_frame": label_takes_frame, "normalized": normalized}
    return transducer_loss(*inputs, **options) if ops is None else native.native_transducer(ops, *inputs, **options)


def ctc(
    logits: Any,
    lens: Any,
    labels: Any,
    label_lens: Any,
    *,
    blank: int,
    max_approx: bool = False,
    normalized: bool = False,
    label_loop: bool = True,
    keep_gradient_without_alignment: bool = False,
) -> Any:
    """Compute a CTC loss; see `returnn_tf.ops.sequence.ctc_variants.ctc_variant`."""
    ops = _ops_for(logits)
    if ops is None or max_approx:
        return ctc_variant(
            logits, lens, labels, label_lens, blank=blank, max_approx=max_approx, normalized=normalized,
            label_loop=label_loop, keep_gradient_without_alignment=keep_gradient_without_alignment, best=best_alignment,
        )  # fmt: skip
    return native.native_ctc(
        ops, logits, _int32(lens), _int32(labels), _int32(label_lens), blank=blank, label_loop=label_loop,
        normalized=normalized, softmax_without_alignment=keep_gradient_without_alignment,
    )  # fmt: skip


def _ops_for(scores: Any) -> Optional[Any]:
    return native.align_ops() if scores.dtype == tf.float32 else None


def _int32(x: Any) -> Any:
    return tf.cast(x, tf.int32)


def _states(topology: Topology) -> Any:
    return {
        "classes": _int32(topology.classes),
        "num_states": _int32(topology.num_states),
        "loop": topology.loop,
        "skip": topology.skip,
        "optional_ends": topology.optional_ends,
    }
