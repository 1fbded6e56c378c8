"""Alignments: the native ops against their form in plain TensorFlow, and CTC against `tf.nn.ctc_loss`.

    python bench/align.py [--rounds N] [--sizes speech,digits]

Forward and backward, in a `tf.function`; both sides of a line are timed in turn, in CPU seconds of this process, such
that other load on the machine does little. The figure is the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Callable, Dict, List, Tuple

import numpy
from timing import in_turn

from returnn_tf.native import align as native
from returnn_tf.ops.ctc_variants import ctc_variant
from returnn_tf.ops.fast_bw import best_alignment, ctc_topology, soft_alignment
from returnn_tf.ops.fsa import Acceptors, soft_alignment_of_acceptors
from returnn_tf.ops.transducer import transducer_loss
from returnn_tf.util.lazy_tf import tf

#: frames, batch, classes, labels
SIZES = {"digits": (80, 32, 12, 8), "phones": (500, 32, 48, 60), "speech": (300, 16, 1001, 50)}

Side = Callable[..., Any]


def make_batch(frames: int, batch: int, classes: int, n_labels: int) -> List[Any]:
    """Random scores, a ragged batch; the blank is the last class."""
    rng = numpy.random.RandomState(1)
    lens = numpy.linspace(frames * 2 // 3, frames, batch).astype("int32")
    return [
        tf.constant(rng.normal(0, 2, (frames, batch, classes)).astype("float32")),
        tf.constant(lens),
        tf.constant(rng.randint(0, classes - 1, (batch, n_labels)).astype("int32")),
        tf.constant(lens * n_labels // frames),
    ]


def training(loss: Side) -> Side:
    """The loss with its gradient."""

    @tf.function(autograph=False)
    def step(x: Any, *others: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(loss(x, *others))
        return value, tape.gradient(value, x)

    return step


def aligning(align: Side, is_native: bool, blank: int) -> Side:
    """An alignment with the states of CTC."""

    @tf.function(autograph=False)
    def step(x: Any, lens: Any, labels: Any, label_lens: Any) -> Any:
        chain = ctc_topology(labels, label_lens, blank)
        if not is_native:
            return align(x, lens, chain)
        parts = (chain.classes, chain.num_states, chain.loop, chain.skip)
        return align(native.align_ops(), x, lens, *parts, optional_ends=True)

    return step


def hmm_acceptors(labels: Any, label_lens: Any, scores: Any) -> Acceptors:
    """A loop in each label, and an edge on to the next one."""
    place = tf.range(tf.shape(labels)[1])[None] + tf.zeros_like(labels)
    forward = tf.stack([place, place + 1, labels], axis=2)
    loop = tf.stack([place + 1, place + 1, labels], axis=2)
    exists = tf.sequence_mask(label_lens, tf.shape(labels)[1])[:, :, None]
    edges = tf.concat([tf.where(exists, forward, -1), tf.where(exists, loop, -1)], axis=1)
    return Acceptors(edges, tf.zeros(tf.shape(edges)[:2], scores.dtype), label_lens + 1)


def by_edges(is_native: bool) -> Side:
    """An alignment over the edges of automata."""

    @tf.function(autograph=False)
    def step(x: Any, lens: Any, labels: Any, label_lens: Any) -> Any:
        given = hmm_acceptors(labels, label_lens, x)
        if not is_native:
            return soft_alignment_of_acceptors(x, lens, given)
        parts = (given.edges, given.costs, given.num_states)
        return native.native_acceptor_alignment(native.align_ops(), x, lens, *parts)

    return step


def comparisons(blank: int) -> Dict[str, Tuple[Side, Side]]:
    """Name -> native side, other side."""

    def ctc(*batch: Any, **options: Any) -> Any:
        return native.native_ctc(native.align_ops(), *batch, blank=blank, **options)

    def dense(x: Any, lens: Any, labels: Any, label_lens: Any) -> Any:
        return tf.nn.ctc_loss(labels, x, label_lens, lens, blank_index=blank)

    return {
        "fast_bw": (aligning(native.native_soft_alignment, True, blank), aligning(soft_alignment, False, blank)),
        "fast_bw, edges": (by_edges(True), by_edges(False)),
        "forced_align": (aligning(native.native_best_alignment, True, blank), aligning(best_alignment, False, blank)),
        "ctc, TF's op": (training(ctc), training(lambda *batch: ctc_variant(*batch, blank=blank))),
        "ctc, tf.nn.ctc_loss": (training(ctc), training(dense)),
        "ctc, normalized": (
            training(lambda *batch: ctc(*batch, normalized=True)),
            training(lambda *batch: ctc_variant(*batch, blank=blank, normalized=True)),
        ),
        "transducer": (
            training(lambda *batch: native.native_transducer(native.align_ops(), *joint(*batch), blank=blank)),
            training(lambda *batch: transducer_loss(*joint(*batch), blank=blank)),
        ),
    }


def joint(x: Any, lens: Any, labels: Any, label_lens: Any) -> Tuple[Any, Any, Any, Any]:
    """Scores of a transducer of two sequences, else they do not fit into the memory of a small machine."""
    scores = tf.transpose(x[:, :2], [1, 0, 2])[:, :, None]
    by_label = tf.sin(tf.cast(tf.range(tf.shape(labels)[1] + 1), x.dtype))[:, None]
    return scores + by_label, lens[:2], labels[:2], label_lens[:2]


def run(side: Side, batch: List[Any]) -> None:
    """One step, to its end."""
    numpy.asarray(side(*batch)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES), help="some of %s" % ",".join(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for size in args.sizes.split(","):
        batch = make_batch(*SIZES[size])
        print("%s: frames %d, batch %d, classes %d, labels %d" % (size, *SIZES[size]))
        for name, (ours, other) in comparisons(SIZES[size][2] - 1).items():
            sides = [partial(run, side, batch) for side in (ours, other)]
            in_turn(*sides, rounds=2)
            times = in_turn(*sides, rounds=args.rounds, cpu=True)
            fast, slow = 1e3 * numpy.median(times, axis=0)
            ratio = numpy.median(times[:, 1] / times[:, 0])
            print("  %-20s %9.2f ms  other %9.2f ms  %6.1f times" % (name, fast, slow, ratio), flush=True)


if __name__ == "__main__":
    main()
