"""Phrases with weights as an automaton that finds all of them at once (Aho and Corasick 1975), as tables for gathers.

The score of a sequence of labels is the sum of the weights of the phrases in it. Of a phrase that is not complete, the
share of its labels counts, until the labels go on otherwise: what `native_ops/ctc_search/phrases.cc` computes for CTC.
A phrase is one of whole words: it begins at the border of a word, and unless its last label ends one, it has its weight
only until a label follows that begins none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.util.lazy_tf import tf

#: The states where no phrase has begun: after the end of a word, and within a word.
BORDER, INSIDE = 0, 1


@dataclass(frozen=True, eq=False)
class PhraseTables:
    """The automaton. A state is a beginning of a phrase, or one of the two in which no phrase has begun.

    A state has edges for the labels that continue a phrase of which at least one label was found; all other labels lead
    to where they lead from `BORDER` or `INSIDE`. So the tables do not have a column for each label: 1000 phrases over
    10 000 labels have 50 000 edges.

    :param share: [states], what a state counts before its phrase is complete
    :param open: [states], the weights of its complete phrases whose last word may go on; else 0
    :param goes_on: [labels], 1 for labels that may belong to the word before, by which the above is lost; else 0
    :param base: [states], whose row of the next two tables counts for labels without an edge: `BORDER` or `INSIDE`
    :param base_next: [2, labels], the next state
    :param base_reward: [2, labels], the weights of the phrases that are complete in the next state, and its share
    :param first: [states], where the edges of a state begin
    :param count: [states], how many edges it has
    :param edge_label: [edges], at least one
    :param edge_next: [edges], the next state
    :param edge_reward: [edges], by how much the reward differs from that of the base
    """

    share: NDArray[np.float32]
    open: NDArray[np.float32]
    goes_on: NDArray[np.float32]
    base: NDArray[np.int32]
    base_next: NDArray[np.int32]
    base_reward: NDArray[np.float32]
    first: NDArray[np.int32]
    count: NDArray[np.int32]
    edge_label: NDArray[np.int32]
    edge_next: NDArray[np.int32]
    edge_reward: NDArray[np.float32]


@dataclass
class _State:
    last: int  # the label of the edge to it; -1: none
    children: dict[int, int]
    fallback: int = BORDER  # the longest other beginning of a phrase that ends with the same labels
    found: float = 0.0
    share: float = 0.0


def phrase_tables(
    phrases: Sequence[Sequence[int]],
    weights: Sequence[float],
    begins: NDArray[Any],
    ends: NDArray[Any],
    ignored: Optional[int] = None,
) -> PhraseTables:
    """Return the automaton of phrases; of equal ones the last counts.

    :param phrases: labels, at least one in each
    :param begins: [labels], whether a label begins a word whatever is before it
    :param ends: [labels], whether a label ends a word whatever is behind it
    :param ignored: a label that changes nothing wherever it is, as the blank of transducers; in no phrase
    """
    trie = _trie(phrases, weights)
    roots = trie[BORDER].children
    labels = np.arange(len(ends))
    outside = np.where(ends, BORDER, INSIDE)

    def base_of(index: int) -> int:
        return index if index in (BORDER, INSIDE) else int(outside[trie[index].last])

    base_next = np.stack([outside, outside])
    for label, child in roots.items():
        base_next[BORDER, label] = child
        if begins[label]:
            base_next[INSIDE, label] = child
    edges: list[dict[int, int]] = [{} for _ in trie]
    order = deque(roots.values())
    while order:  # shorter beginnings first, as a fallback is shorter
        index = order.popleft()
        state = trie[index]
        state.found += trie[state.fallback].found
        state.share = max(state.share, trie[state.fallback].share)
        inherited = edges[state.fallback]
        edges[index] = {**inherited, **state.children}
        for label, child in state.children.items():
            trie[child].fallback = inherited[label] if label in inherited else int(base_next[base_of(index), label])
            order.append(child)

    reward = np.array([state.found + state.share for state in trie])
    share = np.array([state.share for state in trie])
    is_open = np.array([state.last >= 0 and not ends[state.last] for state in trie])
    goes_on = np.logical_not(begins)
    base = np.array([base_of(index) for index in range(len(trie))])
    base_reward = reward[base_next]
    if ignored is not None:
        base_next[:, ignored] = [BORDER, INSIDE]
        goes_on[ignored] = False
        for index, own in enumerate(edges):
            own[ignored] = index
    counts = [len(own) for own in edges]
    edge_label = np.array([label for own in edges for label in own], int)
    edge_next = np.array([state for own in edges for state in own.values()], int)
    gain = np.where(edge_label == ignored, share[edge_next], reward[edge_next])
    edge_reward = gain - base_reward[np.repeat(base, counts), edge_label]
    if not sum(counts):
        edge_label, edge_next, edge_reward = labels[:1], np.zeros(1, int), np.zeros(1)
    return PhraseTables(
        share=share.astype("float32"),
        open=np.where(is_open, reward - share, 0).astype("float32"),
        goes_on=goes_on.astype("float32"),
        base=base.astype("int32"),
        base_next=base_next.astype("int32"),
        base_reward=base_reward.astype("float32"),
        first=(np.cumsum(counts) - counts).astype("int32"),
        count=np.array(counts, "int32"),
        edge_label=edge_label.astype("int32"),
        edge_next=edge_next.astype("int32"),
        edge_reward=edge_reward.astype("float32"),
    )


def _trie(phrases: Sequence[Sequence[int]], weights: Sequence[float]) -> list[_State]:
    """Return the beginnings of phrases, without fallbacks; the first two have none of a phrase."""
    trie = [_State(-1, {}), _State(-1, {})]
    for phrase, weight in zip(phrases, weights):
        index = BORDER
        for count, label in enumerate(phrase, 1):
            if label not in trie[index].children:
                trie[index].children[label] = len(trie)
                trie.append(_State(label, {}))
            index = trie[index].children[label]
            if count < len(phrase):
                trie[index].share = max(trie[index].share, weight * count / len(phrase))
        trie[index].found = weight
    return trie


def next_states(tables: PhraseTables, states: Any, labels: Any) -> Any:
    """Return the states after one more label.

    :param states: int32 [batch]
    :param labels: int32 [batch]
    :return: int32 [batch]
    """
    edge, exists = _edges(tables, states)
    taken = tf.logical_and(exists, tf.gather(tables.edge_label, edge) == labels[:, None])
    by_edge = tf.reduce_max(tf.where(taken, tf.gather(tables.edge_next, edge), -1), axis=1)
    num_labels = tables.base_next.shape[1]
    by_base = tf.gather(tables.base_next.reshape(-1), tf.gather(tables.base, states) * num_labels + labels)
    return tf.where(by_edge >= 0, by_edge, by_base)


def rewards(tables: PhraseTables, states: Any) -> Any:
    """Return by how much the score of the sequence changes with each label that may follow.

    :param states: int32 [batch]
    :return: float32 [batch, labels]
    """
    edge, exists = _edges(tables, states)
    num_labels = tables.base_reward.shape[1]
    batch = tf.shape(states)[0]
    # Places without an edge go to one more column, which is cut off.
    column = tf.where(exists, tf.gather(tables.edge_label, edge), num_labels)
    changed = tf.where(exists, tf.gather(tables.edge_reward, edge), 0.0)
    position = tf.range(batch)[:, None] * (num_labels + 1) + column
    by_edge = tf.scatter_nd(
        tf.reshape(position, [-1, 1]), tf.reshape(changed, [-1]), tf.reshape(batch * (num_labels + 1), [1])
    )
    by_edge = tf.reshape(by_edge, [batch, num_labels + 1])[:, :num_labels]
    by_base = tf.gather(tables.base_reward, tf.gather(tables.base, states))
    lost = tf.gather(tables.share, states)[:, None] + tf.gather(tables.open, states)[:, None] * tables.goes_on
    return by_base + by_edge - lost


def _edges(tables: PhraseTables, states: Any) -> tuple[Any, Any]:
    """Return the edges of states, and which of them exist: both [batch, most edges of a state]."""
    position = tf.range(max(1, int(tables.count.max())))[None]
    exists = position < tf.gather(tables.count, states)[:, None]
    return tf.where(exists, tf.gather(tables.first, states)[:, None] + position, 0), exists
