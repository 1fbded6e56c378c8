"""Attention of tensors whose axes have labels, by the native op."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from math import prod
from typing import Any, Optional

from returnn_tf.native.attention import native_attention
from returnn_tf.native.dispatch import LEAST_WIDTH
from returnn_tf.ops.dense.attention_forms import rounds_factors, usable_attention_ops
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf

Label = Hashable
Labels = tuple[Label, ...]


@dataclasses.dataclass(frozen=True)
class Factor:
    """A tensor with a label for each axis; equal axes of factors have the same label."""

    tensor: Any
    labels: Labels


@dataclasses.dataclass(frozen=True)
class Weights:
    """A softmax over scaled energies.

    :param value: the weights as a tensor, after dropout
    :param labels: of its axes; the softmax is over the last one
    :param lengths: number of keys of each sequence, int32 [batch] or scalar; None: all
    :param causal: a query sees the keys up to its own position
    :param dropout: rate and seed; each weight has a separate random number
    """

    value: Any
    labels: Labels
    factors: tuple[Factor, Factor]
    scale: float
    lengths: Optional[Any]
    causal: bool
    dropout: float = 0.0
    seed: Optional[Any] = None


def labelled_attention(
    weights: Weights, base: Factor, out: Labels, batch: Label, product_dtype: Optional[str] = None
) -> Optional[Any]:
    """Compute the product of attention weights and a base, summed over the keys, without an array of the weights.

    :param base: the values; equal axes of it and the weights have the same label
    :param out: labels of the axes of the result
    :param batch: that of the sequences
    :param product_dtype: see `Semantics`
    :return: None if the op does not compute this
    """
    layout = _Layout.of(weights, base, out, batch)
    if layout is None or layout.width < LEAST_WIDTH:
        return None
    ops = usable_attention_ops(layout.key_size, product_dtype=product_dtype)
    return None if ops is None else layout.emit(ops, weights, product_dtype)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The parts of attention, and their axes as [batch, frames, heads, size] of the native op."""

    parts: tuple[Factor, Factor, Factor]
    groups: tuple[tuple[Labels, Labels, Labels, Labels], ...]
    out: Labels
    width: int
    key_size: int

    @classmethod
    def of(cls, weights: Weights, base: Factor, out: Labels, batch: Label) -> Optional[_Layout]:
        """Sort the axes into batch, heads, queries, keys and features; None if there are others."""
        key_label = weights.labels[-1]
        query, key = weights.factors if key_label in weights.factors[1].labels else reversed(weights.factors)
        if key_label not in key.labels or key_label in query.labels:
            return None
        q, k, v, w = (set(labels) for labels in (query.labels, key.labels, base.labels, weights.labels))
        heads = tuple(label for label in weights.labels if label in q & k and label != batch)
        queries = tuple(label for label in weights.labels if label in q - k)
        summed = tuple(label for label in query.labels if label not in w)
        values = tuple(label for label in base.labels if label not in w)
        one = w - q - k
        fits = len(summed) == 1 and queries and batch in q & k & v & w and not one & {*v, *out}
        fits = fits and k == {batch, key_label, *heads, *summed} and v == {batch, key_label, *heads, *values}
        fits = fits and set(out) == {batch, *queries, *heads, *values} and len(set(out)) == len(out)
        order = tuple(label for label in weights.labels if label not in one)
        # The numbers of the dropout are those of [batch, heads, queries, keys].
        if not fits or (weights.dropout and order != (batch, *heads, *queries, key_label)):
            return None
        groups = tuple(
            ((batch,), frames, heads, size)
            for frames, size in ((queries, summed), ((key_label,), summed), ((key_label,), values), (queries, values))
        )
        sizes = [key.tensor.shape[key.labels.index(label)] for label in (*heads, *summed)]
        if None in sizes or any(base.tensor.shape[base.labels.index(label)] is None for label in values):
            return None
        if weights.causal and len(queries) != 1:
            return None
        return cls((query, key, base), groups, out, prod(sizes), sizes[-1])

    def emit(self, ops: Any, weights: Weights, product_dtype: Optional[str]) -> Any:
        """Emit the op, and its result in the layout of the output."""
        parts = [_grouped(part, groups) for part, groups in zip(self.parts, self.groups)]
        shape, lengths = tf.shape(parts[1]), weights.lengths
        if lengths is not None:
            lengths = tf.broadcast_to(tf.clip_by_value(lengths, 0, shape[1]), shape[:1])
        y = native_attention(
            ops, parts, self.key_size, scale=weights.scale, lengths=lengths, causal=weights.causal,
            dropout=weights.dropout, seed=weights.seed, rounded=rounds_factors(self.key_size, product_dtype),
        )  # fmt: skip
        labels = [label for group in self.groups[3] for label in group]
        sizes = self._sizes()
        y = tf.reshape(y, tf.stack([sizes[label] for label in labels]))
        y = transpose(y, [labels.index(label) for label in self.out])
        y.set_shape([size if isinstance(size, int) else None for size in (sizes[label] for label in self.out)])
        return y

    def _sizes(self) -> dict[Label, Any]:
        """Return the size of each axis: an int if static."""
        found: dict[Label, Any] = {}
        for part in self.parts:
            dynamic = tf.shape(part.tensor)
            for axis, label in enumerate(part.labels):
                size = part.tensor.shape[axis]
                found[label] = dynamic[axis] if size is None else size
        return found


def _grouped(part: Factor, groups: Sequence[Labels]) -> Any:
    """Return a tensor with one axis for each group of labels."""
    order = [part.labels.index(label) for group in groups for label in group]
    x = transpose(part.tensor, order)
    if all(len(group) == 1 for group in groups):
        return x
    dynamic, sizes, begin = tf.shape(x), [], 0
    for group in groups:
        static = x.shape[begin : begin + len(group)].as_list()
        sizes.append(tf.reduce_prod(dynamic[begin : begin + len(group)]) if None in static else prod(static))
        begin += len(group)
    return tf.reshape(x, tf.stack(sizes))
