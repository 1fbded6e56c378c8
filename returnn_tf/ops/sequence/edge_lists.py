"""Edge lists of automata, as user code builds them, converted for `returnn_tf.ops.sequence.fsa`."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.sequence.fast_bw import ctc_topology
from returnn_tf.ops.sequence.fsa import Acceptors
from returnn_tf.util.lazy_tf import tf


def acceptors_of_edge_list(edges: Any, costs: Any, start_end_states: Any) -> Acceptors:
    """Convert a list with the edges of all sequences to acceptors.

    :param edges: int32 [4, edges]: from, to, class, sequence. The states of a sequence may be numbered from any value.
    :param costs: float [edges], negative log probabilities
    :param start_end_states: int32 [2, batch]: initial and final state of each sequence; they must differ
    :raises tf.errors.InvalidArgumentError: they are the same
    """
    edges, start_end_states = tf.cast(edges, tf.int32), tf.cast(start_end_states, tf.int32)
    batch = tf.shape(start_end_states)[1]
    sequence = edges[3]
    start, end = start_end_states[0], start_end_states[1]
    same = tf.debugging.assert_none_equal(
        start, end, message="automata as lists of edges: the initial and the final state of a sequence must differ"
    )
    with tf.control_dependencies([] if same is None else [same]):
        order = tf.argsort(sequence, stable=True)
    sequence = tf.gather(sequence, order)
    counts = tf.math.bincount(sequence, minlength=batch, maxlength=batch)
    place = tf.range(tf.size(sequence)) - tf.gather(tf.cumsum(counts, exclusive=True), sequence)
    states, first, last = tf.gather(edges[:2], order, axis=1), start, end
    for column in (0, 1):
        first = tf.minimum(first, tf.math.unsorted_segment_min(states[column], sequence, batch))
        last = tf.maximum(last, tf.math.unsorted_segment_max(states[column], sequence, batch))

    def numbered(state: Any, first: Any, start: Any, end: Any, last: Any) -> Any:
        """Renumber states from 0: the start state swaps places with state 0, the end state with the last one."""
        state = _swapped(state - first, tf.zeros_like(first), start - first)
        return _swapped(state, last - first, _swapped(end - first, tf.zeros_like(first), start - first))

    of_edge = [tf.gather(x, sequence) for x in (first, start, end, last)]
    columns = tf.stack([*(numbered(states[c], *of_edge) for c in (0, 1)), tf.gather(edges[2], order)], axis=1)
    target, shape = tf.stack([sequence, place], axis=1), tf.stack([batch, tf.reduce_max(tf.concat([counts, [0]], 0))])
    empty = tf.fill(tf.concat([shape, [3]], axis=0), -1)
    padded = tf.scatter_nd(target, tf.gather(costs, order), shape)
    return Acceptors(tf.tensor_scatter_nd_update(empty, target, columns), padded, last - first + 1)


def _swapped(state: Any, a: Any, b: Any) -> Any:
    return tf.where(tf.equal(state, a), b, tf.where(tf.equal(state, b), a, state))


def ctc_edge_list(labels: Any, label_lens: Any, blank: int, *, label_loop: bool = True) -> tuple[Any, Any, Any]:
    """Return the edges of the CTC automata (Graves et al. 2006), or of RNA (Sak et al. 2017) without ``label_loop``.

    State 0 of a sequence is the initial one, followed by those of its blanks and labels, then the final state.

    :param labels: int [batch, labels]
    :param label_lens: int32 [batch]
    :return: (edges int32 [4, edges], costs float32 [edges], all 0, start_end_states int32 [2, batch])
    """
    chain = ctc_topology(labels, tf.cast(label_lens, tf.int32), blank, label_loop=label_loop)
    batch, size = tf.shape(chain.classes)[0], tf.shape(chain.classes)[1]
    position = tf.range(size)
    exists = position < chain.num_states[:, None]
    # Into each state: from itself, from the one before (from the start to the first), and over one.
    over = tf.logical_or(chain.skip, tf.equal(position, 1))
    allowed = tf.stack([chain.loop, tf.ones_like(exists), over], axis=2) & exists[:, :, None]
    is_last = position >= chain.num_states[:, None] - 2
    offset = (tf.range(batch) * (size + 2))[:, None]
    goal, final = offset + position + 1, offset + chain.num_states[:, None] + 1
    parts = []
    for to, also in ((goal, tf.ones_like(is_last)), (tf.broadcast_to(final, tf.shape(goal)), is_last)):
        origin = goal[:, :, None] - tf.range(3)
        rows = [tf.broadcast_to(x, tf.shape(origin)) for x in (to[:, :, None], chain.classes[:, :, None])]
        sequence = tf.broadcast_to(tf.range(batch)[:, None, None], tf.shape(origin))
        parts.append(tf.boolean_mask(tf.stack([origin, *rows, sequence], axis=3), allowed & also[:, :, None]))
    edges = tf.transpose(tf.concat(parts, axis=0))
    return edges, tf.zeros(tf.shape(edges)[1:]), tf.stack([offset[:, 0], final[:, 0]])
