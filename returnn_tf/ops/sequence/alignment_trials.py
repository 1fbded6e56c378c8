"""Trials of the native alignments and losses against their forms in TensorFlow, with the chains and lattices of CTC."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.decoding import align as native
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.sequence import fast_bw, fsa
from returnn_tf.ops.sequence.ctc_variants import ctc_variant
from returnn_tf.ops.sequence.transducer import transducer_loss
from returnn_tf.util.lazy_tf import tf

#: Frames for each label: half of a batch's frames are enough for all labels, equal ones included.
_FRAMES_OF_LABEL = 5
#: A transducer has scores for each label and frame.
_FRAMES_OF_TRANSDUCER_LABEL = 10


def _labels(size: Size, frames_of_label: int = _FRAMES_OF_LABEL) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels int32 [batch, labels], none of which is the last class, the blank; and their numbers [batch]."""
    count = max(size.frames // frames_of_label, 1)
    labels = np.random.RandomState(2).randint(0, max(size.width - 1, 1), (size.batch, count))
    return labels.astype("int32"), np.full([size.batch], count, "int32")


def _scores(size: Size) -> list[NDArray[Any]]:
    return draw((2.0, (size.frames, size.batch, size.width)))


def _ctc(size: Size) -> Case:
    lens, (labels, counts), blank = ragged(size), _labels(size), size.width - 1

    def plain(x: Any) -> list[Any]:
        arrays = map(tf.constant, (lens, labels, counts))
        return [ctc_variant(x, *arrays, blank=blank, max_approx=False, normalized=False, label_loop=True)]

    return Case(
        _scores(size), lambda ops, x: [native.native_ctc(ops, x, lens, labels, counts, blank=blank)], plain
    )  # fmt: skip


def _chain(size: Size) -> tuple[NDArray[Any], fast_bw.Topology, dict[str, Any]]:
    """Return lengths, and chains of states in both forms."""
    labels, counts = _labels(size)
    chain = fast_bw.ctc_topology(tf.constant(labels), tf.constant(counts), size.width - 1)
    options = {"classes": chain.classes, "num_states": chain.num_states, "loop": chain.loop, "skip": chain.skip}
    return ragged(size), chain, {**options, "optional_ends": chain.optional_ends}


def _soft(size: Size) -> Case:
    lens, chain, options = _chain(size)
    return Case(
        _scores(size),
        lambda ops, x: native.native_soft_alignment(ops, x, lens, **options),
        lambda x: fast_bw.soft_alignment(x, tf.constant(lens), chain),
        has_gradients=False,
    )


def _best(size: Size) -> Case:
    lens, chain, options = _chain(size)
    return Case(
        _scores(size),
        lambda ops, x: _scored(x, lens, *native.native_best_alignment(ops, x, lens, **options)),
        lambda x: _scored(x, lens, *fast_bw.best_alignment(x, tf.constant(lens), chain)),
        has_gradients=False,
    )


def _scored(x: Any, lens: Any, path: Any, total: Any) -> list[Any]:
    """Return the score of the frames of a path in place of the path: of two that are as good, either may be found."""
    inside = tf.transpose(tf.sequence_mask(lens, tf.shape(x)[0], x.dtype))
    return [tf.reduce_sum(tf.gather(x, path, batch_dims=2) * inside, axis=0), total]


def _acceptors(size: Size) -> fsa.Acceptors:
    """Return chains in which each label is read once or several times."""
    labels, counts = _labels(size)
    steps, ones = np.broadcast_to(np.arange(labels.shape[1]), labels.shape), np.ones_like(labels)
    edges = [np.stack([steps, steps + ones, labels], axis=2), np.stack([steps + ones, steps + ones, labels], axis=2)]
    joined = np.concatenate(edges, axis=1).astype("int32")
    costs = np.random.RandomState(3).uniform(0, 1, joined.shape[:2]).astype("float32")
    return fsa.Acceptors(*map(tf.constant, (joined, costs, counts + 1)))


def _acceptor_soft(size: Size) -> Case:
    lens, found = ragged(size), _acceptors(size)
    return Case(
        _scores(size),
        lambda ops, x: native.native_acceptor_alignment(ops, x, lens, found.edges, found.costs, found.num_states),
        lambda x: fsa.soft_alignment_of_acceptors(x, tf.constant(lens), found),
        has_gradients=False,
    )


def _acceptor_best(size: Size) -> Case:
    lens, found = ragged(size), _acceptors(size)

    def run(ops: Any, x: Any) -> list[Any]:
        parts = native.native_acceptor_path(ops, x, lens, found.edges, found.costs, found.num_states)
        return _scored(x, lens, *parts)

    def plain(x: Any) -> list[Any]:
        return _scored(x, lens, *fsa.best_path_of_acceptors(x, tf.constant(lens), found))

    return Case(_scores(size), run, plain, has_gradients=False)


def _transducer(size: Size) -> Case:
    frames = size.frames // 2
    lens = (ragged(size) + 1) // 2
    labels, counts = _labels(size, _FRAMES_OF_TRANSDUCER_LABEL)
    scores = draw((2.0, (size.batch, frames, labels.shape[1] + 1, size.width)))
    options: dict[str, Any] = {"blank": size.width - 1, "label_takes_frame": False, "normalized": False}
    return Case(
        scores,
        lambda ops, x: [native.native_transducer(ops, x, lens, labels, counts, **options)],
        lambda x: [transducer_loss(x, *map(tf.constant, (lens, labels, counts)), **options)],
    )


def _trial(name: str, constant: str, case: Callable[[Size], Case], widths: tuple[int, ...] = (40, 1000)) -> Trial:
    return Trial(name, "align", __name__, constant, case, "classes", widths)


CTC_TRIAL = _trial("ctc", "CTC_TRIAL", _ctc)
SOFT_TRIAL = _trial("soft alignment", "SOFT_TRIAL", _soft)
BEST_TRIAL = _trial("best alignment", "BEST_TRIAL", _best)
ACCEPTOR_TRIAL = _trial("acceptor alignment", "ACCEPTOR_TRIAL", _acceptor_soft)
ACCEPTOR_PATH_TRIAL = _trial("acceptor path", "ACCEPTOR_PATH_TRIAL", _acceptor_best)
TRANSDUCER_TRIAL = _trial("transducer", "TRANSDUCER_TRIAL", _transducer)
