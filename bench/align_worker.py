"""Steps of a row of ``bench/align.py`` in TensorFlow: ``python bench/align_worker.py ROW native|plain``.

Each gives the sum of its losses or scores; those with a loss compute its gradient too.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

from align_rows import CHUNKS, JOINT_BATCH, ROWS
from workers import serve

from returnn_tf.native.chunk import chunk_ops, native_chunk, native_unchunk
from returnn_tf.ops.frames.chunks import chunk, unchunk
from returnn_tf.ops.sequence import alignments
from returnn_tf.ops.sequence.fast_bw import ctc_topology
from returnn_tf.ops.sequence.fsa import Acceptors
from returnn_tf.util.lazy_tf import tf

Step = Callable[[], float]


def compiled(function: Callable[..., Any], inputs: list[Any], has_gradient: bool) -> Step:
    """Return a step that computes all results of a function and returns the sum of the last one."""

    @tf.function(autograph=False)
    def run(*inputs: Any) -> Any:
        if not has_gradient:
            *others, total = function(*inputs)
            return tf.reduce_sum(total), others
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            total = tf.reduce_sum(function(*inputs))
        return total, tape.gradient(total, inputs[0])

    return lambda: float(run(*inputs)[0])


def hmm_acceptors(labels: Any, label_lens: Any) -> Acceptors:
    """Return automata with a loop at each label and an edge to the next one."""
    place = tf.range(tf.shape(labels)[1])[None] + tf.zeros_like(labels)
    forward = tf.stack([place, place + 1, labels], axis=2)
    loop = tf.stack([place + 1, place + 1, labels], axis=2)
    exists = tf.sequence_mask(label_lens, tf.shape(labels)[1])[:, :, None]
    edges = tf.concat([tf.where(exists, forward, -1), tf.where(exists, loop, -1)], axis=1)
    return Acceptors(edges, tf.zeros(tf.shape(edges)[:2]), label_lens + 1)


def joint(x: Any, lens: Any, labels: Any, label_lens: Any) -> list[Any]:
    """Return the scores of a transducer for a few sequences."""
    scores = tf.transpose(x[:, :JOINT_BATCH], [1, 0, 2])[:, :, None]
    by_label = tf.sin(tf.cast(tf.range(tf.shape(labels)[1] + 1), x.dtype))[:, None]
    return [scores + by_label, *(part[:JOINT_BATCH] for part in (lens, labels, label_lens))]


def make_steps() -> dict[str, Step]:
    """Return all steps of the row and form that the command line names."""
    tf.get_logger().setLevel("ERROR")  # it warns that there are so many functions
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["BENCH_THREADS"]))
    row, form = ROWS[sys.argv[1]], sys.argv[2]
    batch, blank = [tf.constant(x) for x in row.draw()], row.blank
    scores, lens, labels, label_lens = batch
    chain, acceptors = ctc_topology(labels, label_lens, blank), hmm_acceptors(labels, label_lens)
    size, step = CHUNKS
    ops = chunk_ops() if form == "native" else None
    cut = chunk if ops is None else lambda x, *sizes: native_chunk(ops, x, *sizes)
    join = unchunk if ops is None else lambda x, *sizes: native_unchunk(ops, x, *sizes)
    steps = {
        "fast_bw": compiled(lambda x: alignments.soft_alignment(x, lens, chain), [scores], False),
        "fast_bw:edges": compiled(lambda x: alignments.acceptor_alignment(x, lens, acceptors), [scores], False),
        "forced_align": compiled(lambda x: alignments.best_alignment(x, lens, chain), [scores], False),
        "forced_align:edges": compiled(lambda x: alignments.acceptor_path(x, lens, acceptors), [scores], False),
        "ctc": compiled(lambda *given: alignments.ctc(*given, blank=blank), batch, True),
        "ctc:normalized": compiled(lambda *given: alignments.ctc(*given, blank=blank, normalized=True), batch, True),
        "transducer": compiled(lambda *given: alignments.transducer(*given, blank=blank), joint(*batch), True),
        "chunk": compiled(lambda x: tf.square(cut(x, size, step)), [scores], True),
        "unchunk": compiled(lambda x: tf.square(join(x, row.frames, size, step)), [chunk(scores, size, step)], True),
    }
    if form == "plain":
        steps["tf.nn.ctc_loss"] = compiled(
            lambda x, lens, labels, counts: tf.nn.ctc_loss(labels, x, counts, lens, blank_index=blank), batch, True
        )
    return steps


serve(make_steps)
