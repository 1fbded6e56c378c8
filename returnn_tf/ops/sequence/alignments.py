"""Alignments, and losses that sum over them, each in float32 by a native op where there is one."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.native.decoding import align as native
from returnn_tf.native.dispatch import form
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Trial
from returnn_tf.ops.sequence import alignment_trials as trials
from returnn_tf.ops.sequence import fast_bw, fsa
from returnn_tf.ops.sequence.ctc_variants import ctc_variant
from returnn_tf.ops.sequence.fast_bw import Topology
from returnn_tf.ops.sequence.fsa import Acceptors
from returnn_tf.ops.sequence.transducer import transducer_loss
from returnn_tf.util.lazy_tf import tf


def _where(trial: Trial) -> Callable[..., Any]:
    """Return what tells whether the native form of a function applies."""

    def ops_for(scores: Any, *_: Any, max_approx: bool = False, **__: Any) -> Any:
        ops = scores.dtype == tf.float32 and not max_approx and native.align_ops()
        return ops if ops and pays(trial, scores.shape[-1], scores.dtype) else None

    return ops_for


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


def _edges(acceptors: Acceptors) -> Any:
    return {"edges": acceptors.edges, "costs": acceptors.costs, "num_states": acceptors.num_states}


@form(
    lambda ops, x, lens, states: native.native_soft_alignment(ops, x, _int32(lens), **_states(states)),
    where=_where(trials.SOFT_TRIAL),
)
def soft_alignment(scores: Any, lens: Any, topology: Topology) -> tuple[Any, Any]:
    """Compute the soft alignment of `fast_bw.soft_alignment`, by the native op where it can be used."""
    return fast_bw.soft_alignment(scores, lens, topology)


@form(
    lambda ops, x, lens, states: native.native_best_alignment(ops, x, _int32(lens), **_states(states)),
    where=_where(trials.BEST_TRIAL),
)
def best_alignment(scores: Any, lens: Any, topology: Topology) -> tuple[Any, Any]:
    """Compute the best alignment of `fast_bw.best_alignment`, by the native op where it can be used."""
    return fast_bw.best_alignment(scores, lens, topology)


@form(
    lambda ops, x, lens, found: native.native_acceptor_alignment(ops, x, _int32(lens), **_edges(found)),
    where=_where(trials.ACCEPTOR_TRIAL),
)
def acceptor_alignment(scores: Any, lens: Any, acceptors: Acceptors) -> tuple[Any, Any]:
    """Compute the soft alignment with an acceptor per sequence, by the native op where it can be used."""
    return fsa.soft_alignment_of_acceptors(scores, lens, acceptors)


@form(
    lambda ops, x, lens, found: native.native_acceptor_path(ops, x, _int32(lens), **_edges(found)),
    where=_where(trials.ACCEPTOR_PATH_TRIAL),
)
def acceptor_path(scores: Any, lens: Any, acceptors: Acceptors) -> tuple[Any, Any]:
    """Compute the best path through an acceptor per sequence, by the native op where it can be used."""
    return fsa.best_path_of_acceptors(scores, lens, acceptors)


def _native_transducer(ops: Any, scores: Any, lens: Any, labels: Any, label_lens: Any, **options: Any) -> Any:
    return native.native_transducer(ops, scores, _int32(lens), _int32(labels), _int32(label_lens), **options)


@form(_native_transducer, where=_where(trials.TRANSDUCER_TRIAL))
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
    """Compute the loss of `transducer.transducer_loss`, by the native op where it can be used."""
    options: dict[str, Any] = {"blank": blank, "label_takes_frame": label_takes_frame, "normalized": normalized}
    return transducer_loss(scores, _int32(lens), _int32(labels), _int32(label_lens), **options)


def _native_ctc(
    ops: Any,
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
    return native.native_ctc(
        ops, logits, _int32(lens), _int32(labels), _int32(label_lens), blank=blank, label_loop=label_loop,
        normalized=normalized, softmax_without_alignment=keep_gradient_without_alignment,
    )  # fmt: skip


@form(_native_ctc, where=_where(trials.CTC_TRIAL))
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
    """Compute the loss of `ctc_variants.ctc_variant`, by the native op where it can be used."""
    return ctc_variant(
        logits, lens, labels, label_lens, blank=blank, max_approx=max_approx, normalized=normalized,
        label_loop=label_loop, keep_gradient_without_alignment=keep_gradient_without_alignment, best=best_alignment,
    )  # fmt: skip
