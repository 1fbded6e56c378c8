"""Forward-backward and Viterbi over linear alignment topologies, batched, in log space.

A topology is a chain of states per sequence; each state emits one class per frame. Transitions stay in a state (if it
has a loop), go to the next one, or skip one (if allowed). That covers CTC, its variant with labels of exactly one
frame (RNA, Sak et al. 2017), and plain left-to-right chains.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class Topology:
    """A chain of states for every sequence of a batch.

    :param classes: int32 [batch, states], the class that each state emits; padded with any class
    :param num_states: int32 [batch]
    :param loop: bool [batch, states], whether the state may be repeated
    :param skip: bool [batch, states], whether the state may be entered from two states before
    :param optional_ends: whether the first and the last state may be left out (the blanks of CTC)
    """

    classes: Any
    num_states: Any
    loop: Any
    skip: Any
    optional_ends: bool

    def reversed(self) -> Topology:
        """Return the topology with all chains reversed."""

        def flip(x: Any) -> Any:
            return tf.reverse_sequence(x, self.num_states, seq_axis=1, batch_axis=0)

        # A skip into a state becomes one into the state it came from.
        skip = tf.pad(self.skip[:, 2:], [[0, 0], [0, tf.minimum(2, tf.shape(self.skip)[1])]])
        return Topology(flip(self.classes), self.num_states, flip(self.loop), flip(skip), self.optional_ends)

    def concat(self, other: Topology) -> Topology:
        """Concatenate two batches."""

        def join(a: Any, b: Any) -> Any:
            return tf.concat([a, b], axis=0)

        return Topology(
            join(self.classes, other.classes),
            join(self.num_states, other.num_states),
            join(self.loop, other.loop),
            join(self.skip, other.skip),
            self.optional_ends,
        )


def ctc_topology(labels: Any, label_lens: Any, blank: int, *, label_loop: bool = True) -> Topology:
    """Return the chain blank, label, blank, label, ..., blank; blanks are optional except between equal labels.

    :param labels: int [batch, labels]
    :param label_loop: False: a label lasts exactly one frame (RNA), and equal labels need no blank between them
    """
    labels = tf.cast(labels, tf.int32)
    batch, length = tf.shape(labels)[0], tf.shape(labels)[1]
    blanks = tf.fill([batch, length], blank)
    classes = tf.pad(
        tf.reshape(tf.stack([blanks, labels], axis=2), [batch, 2 * length]), [[0, 0], [0, 1]], constant_values=blank
    )
    is_label = tf.broadcast_to(tf.range(2 * length + 1) % 2 == 1, [batch, 2 * length + 1])
    num_states = 2 * label_lens + 1
    # There are no states after the end of a sequence, so nothing has to be masked there.
    position = tf.range(2 * length + 1)
    skip = tf.logical_and(is_label, position >= 2)
    loop = tf.ones_like(is_label)
    if label_loop:
        before = tf.pad(classes, [[0, 0], [2, 0]], constant_values=-1)[:, : 2 * length + 1]
        skip = tf.logical_and(skip, tf.not_equal(classes, before))
    else:
        loop = tf.logical_not(is_label)
    return Topology(classes, num_states, loop, skip, True)


def chain_topology(lens: Any, size: Any) -> Topology:
    """Return the chain where state i emits class i and has a loop; all states are visited in order ("staircase").

    :param lens: int32 [batch], the number of states
    :param size: the greatest of them
    """
    shape = [tf.shape(lens)[0], size]
    classes = tf.broadcast_to(tf.range(size), shape)
    return Topology(classes, lens, tf.ones(shape, tf.bool), tf.zeros(shape, tf.bool), False)


def label_topology(labels: Any, label_lens: Any) -> Topology:
    """Return the chain where each label has a loop; all are visited in order, without a blank ("hmm").

    :param labels: int [batch, labels]
    :param label_lens: int32 [batch]
    """
    labels = tf.cast(labels, tf.int32)
    return Topology(labels, label_lens, tf.ones_like(labels, tf.bool), tf.zeros_like(labels, tf.bool), False)


def soft_alignment(scores: Any, lens: Any, topology: Topology) -> tuple[Any, Any]:
    """Compute posteriors of all classes and the full-sum score in one pass that runs forward and backward side by side.

    :param scores: [time, batch, classes] log scores
    :param lens: int32 [batch], frames
    :return: (probabilities [time, batch, classes], 0 in padded frames and where there is no alignment;
        log of the sum over all alignments [batch], -inf where there is none). No gradients.
    """
    scores = tf.stop_gradient(scores)
    emission = _emission(scores, topology)
    back = topology.reversed()
    emission_back = _flip(_emission(scores, back), lens, time_axis=0)
    both = _accumulate(tf.concat([emission, emission_back], axis=1), topology.concat(back))
    batch = tf.shape(lens)[0]
    forward = both[:, :batch]
    backward = _flip(both[:, batch:], lens, time_axis=0)
    states = tf.tile(topology.num_states[None], [tf.shape(scores)[0], 1])
    backward = _flip_states(backward, states)
    total = _final_score(forward, lens, topology)
    joint = (
        forward + backward - emission - tf.where(tf.math.is_finite(total), total, tf.zeros_like(total))[None, :, None]
    )
    inside = tf.range(tf.shape(scores)[0])[:, None] < lens
    valid = tf.logical_and(inside, tf.math.is_finite(total))[:, :, None]
    valid = tf.logical_and(valid, tf.math.is_finite(joint))
    posteriors = tf.where(valid, tf.exp(joint), tf.zeros_like(joint))
    return _sum_by_class(posteriors, topology.classes, tf.shape(scores)[2]), total


def best_alignment(scores: Any, lens: Any, topology: Topology) -> tuple[Any, Any]:
    """Return the class of every frame on the best path, and its score (Viterbi).

    :param scores: [time, batch, classes] log scores
    :return: (int32 [time, batch], 0 in padded frames; [batch], -inf where there is no alignment). No gradients.
    """
    scores = tf.stop_gradient(scores)
    emission = _emission(scores, topology)
    alpha, came_from = _accumulate_best(emission, topology)
    frames = tf.shape(scores)[0]
    last = _at_frame(alpha, lens - 1)
    end = topology.num_states - 1
    final = tf.gather(last, tf.maximum(end, 0)[:, None], batch_dims=1)[:, 0]
    final = tf.where(lens > 0, final, _penalty(_may_be_empty(topology), final.dtype))
    if topology.optional_ends:
        other = tf.gather(last, tf.maximum(end - 1, 0)[:, None], batch_dims=1)[:, 0]
        better = tf.logical_and(tf.logical_and(end > 0, lens > 0), other > final)
        final = tf.where(better, other, final)
        end = tf.where(better, end - 1, end)
    path = tf.TensorArray(tf.int32, size=frames, element_shape=[None])

    def step(t: Any, state: Any, path: Any) -> Any:
        inside = t < lens
        path = path.write(t, tf.where(inside, state, tf.fill(tf.shape(state), -1)))
        back = tf.gather(came_from[t], tf.maximum(state, 0)[:, None], batch_dims=1)[:, 0]
        return t - 1, tf.where(inside, state - back, state), path

    _, _, path = tf.while_loop(lambda t, *_: t >= 0, step, [frames - 1, end, path])
    states = tf.transpose(stacked(path, [tf.shape(scores)[1]]))
    best = tf.gather(topology.classes, tf.maximum(states, 0), batch_dims=1)
    best = tf.where(tf.logical_and(states >= 0, tf.math.is_finite(final)[:, None]), best, tf.zeros_like(best))
    return tf.transpose(best), final


_NEG = float("-inf")


def _emission(scores: Any, topology: Topology) -> Any:
    """Return the log score of every state, -inf for states beyond the chain; [time, batch, states]."""
    by_state = tf.gather(scores, tf.broadcast_to(topology.classes, _by_frame(scores, topology)), batch_dims=2)
    exists = tf.sequence_mask(topology.num_states, tf.shape(topology.classes)[1])
    return tf.where(exists[None], by_state, tf.fill(tf.shape(by_state), tf.cast(_NEG, scores.dtype)))


def _by_frame(scores: Any, topology: Topology) -> Any:
    return tf.concat([tf.shape(scores)[:1], tf.shape(topology.classes)], axis=0)


def _penalty(allowed: Any, dtype: Any) -> Any:
    """Return 0 where allowed, else -inf."""
    return tf.where(allowed, tf.zeros([], dtype), tf.cast(_NEG, dtype))


def _start(topology: Topology, dtype: Any) -> Any:
    """Return 0 for possible start states, else -inf; [states]."""
    position = tf.range(tf.shape(topology.classes)[1])
    return _penalty(position <= (1 if topology.optional_ends else 0), dtype)


def _shifted(alpha: Any, steps: int) -> Any:
    """Return the scores of the states ``steps`` earlier; [batch, states]."""
    return tf.pad(alpha, [[0, 0], [steps, 0]], constant_values=_NEG)[:, : tf.shape(alpha)[1]]


def _accumulate(emission: Any, topology: Topology) -> Any:
    """Return the log of the sum over all paths to a state at a frame, its emission included; [time, batch, states]."""
    loop, skip = _penalty(topology.loop, emission.dtype), _penalty(topology.skip, emission.dtype)
    result = tf.TensorArray(emission.dtype, size=tf.shape(emission)[0], element_shape=[None, None])
    alpha = tf.broadcast_to(_start(topology, emission.dtype), tf.shape(emission)[1:])

    def step(t: Any, alpha: Any, result: Any) -> Any:
        stay, come, jump = alpha + loop, _shifted(alpha, 1), _shifted(alpha, 2) + skip
        ways = tf.where(t > 0, tf.reduce_logsumexp(tf.stack([stay, come, jump]), axis=0), alpha)
        alpha = ways + emission[t]
        return t + 1, alpha, result.write(t, alpha)

    frames = tf.shape(emission)[0]
    _, _, result = tf.while_loop(lambda t, *_: t < frames, step, [0, alpha, result])
    return stacked(result, tf.unstack(tf.shape(alpha)))


def _accumulate_best(emission: Any, topology: Topology) -> tuple[Any, Any]:
    """Return the score of the best path to each state [time, batch, states], and its predecessor.

    The predecessor is an int32 number of states to go back.
    """
    loop, skip = _penalty(topology.loop, emission.dtype), _penalty(topology.skip, emission.dtype)
    frames = tf.shape(emission)[0]
    scores = tf.TensorArray(emission.dtype, size=frames, element_shape=[None, None])
    origins = tf.TensorArray(tf.int32, size=frames, element_shape=[None, None])
    alpha = tf.broadcast_to(_start(topology, emission.dtype), tf.shape(emission)[1:])

    def step(t: Any, alpha: Any, scores: Any, origins: Any) -> Any:
        ways = tf.stack([alpha + loop, _shifted(alpha, 1), _shifted(alpha, 2) + skip])
        origin = tf.argmax(ways, axis=0, output_type=tf.int32)
        alpha = tf.where(t > 0, tf.reduce_max(ways, axis=0), alpha) + emission[t]
        return t + 1, alpha, scores.write(t, alpha), origins.write(t, origin)

    _, _, scores, origins = tf.while_loop(lambda t, *_: t < frames, step, [0, alpha, scores, origins])
    return stacked(scores, tf.unstack(tf.shape(alpha))), stacked(origins, tf.unstack(tf.shape(alpha)))


def _at_frame(x: Any, frame: Any) -> Any:
    """Select one frame per sequence, [time, batch, states] -> [batch, states]; -inf without any frames."""
    x = tf.pad(x, [[0, 1], [0, 0], [0, 0]], constant_values=_NEG)
    return tf.gather(tf.transpose(x, [1, 0, 2]), tf.maximum(frame, 0)[:, None], batch_dims=1)[:, 0]


def _may_be_empty(topology: Topology) -> Any:
    """Return whether zero frames are an alignment; [batch]."""
    return topology.num_states <= (1 if topology.optional_ends else 0)


def _final_score(alpha: Any, lens: Any, topology: Topology) -> Any:
    """Return the log of the sum over all complete alignments; [batch]."""
    last = _at_frame(alpha, lens - 1)
    ends = tf.logical_and(
        tf.range(tf.shape(last)[1]) >= (topology.num_states - (2 if topology.optional_ends else 1))[:, None],
        tf.sequence_mask(topology.num_states, tf.shape(last)[1]),
    )
    total = tf.reduce_logsumexp(last + _penalty(ends, last.dtype), axis=1)
    nothing = _penalty(_may_be_empty(topology), last.dtype)
    return tf.where(lens > 0, total, nothing)


def _flip(x: Any, lens: Any, time_axis: int) -> Any:
    return tf.reverse_sequence(x, lens, seq_axis=time_axis, batch_axis=1)


def _flip_states(x: Any, num_states: Any) -> Any:
    """Reverse the states of each sequence; [time, batch, states]."""
    shape = tf.shape(x)
    flat = tf.reshape(x, [-1, shape[2]])
    return tf.reshape(tf.reverse_sequence(flat, tf.reshape(num_states, [-1]), seq_axis=1, batch_axis=0), shape)


def _sum_by_class(posteriors: Any, classes: Any, num_classes: Any) -> Any:
    """Sum states by class, [time, batch, states] -> [time, batch, classes]."""
    time, batch = tf.shape(posteriors)[0], tf.shape(posteriors)[1]
    segments = classes + tf.range(batch)[:, None] * num_classes
    by_sequence = tf.transpose(posteriors, [1, 2, 0])
    summed = tf.math.unsorted_segment_sum(
        tf.reshape(by_sequence, [tf.size(segments), time]), tf.reshape(segments, [-1]), batch * num_classes
    )
    return tf.transpose(tf.reshape(summed, tf.stack([batch, num_classes, time])), [2, 0, 1])
