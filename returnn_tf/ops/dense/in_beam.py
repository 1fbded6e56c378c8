"""Products of values that a search has once per hypothesis with values that exist once per sequence."""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.native.decoding.beam_attention import beam_attention_ops, native_once_attention
from returnn_tf.native.decoding.search import search_ops
from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.dense.einsum import einsum
from returnn_tf.ops.dense.labelled_attention import Factor, Label, Labels, Weights
from returnn_tf.ops.frames.shape import merge_axes, size_of, split_axis
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.util.lazy_tf import tf

Axes = Sequence[Hashable]


def _kernel(
    once: tuple[Any, Axes],
    other: tuple[Any, Axes],
    out: Axes,
    *,
    batch: Hashable,
    beam: int,
    with_gradient: bool,
    product_dtype: Optional[str],
) -> Optional[Callable[[Any, Any], Any]]:
    """Return the native op for this product, if it is one of queries and keys, or of weights and values.

    Keys and values have the axes batch, frames, any, size.
    """
    (x, labels), (y, others), out = (once[0], list(once[1])), (other[0], list(other[1])), list(out)
    if with_gradient or len(out) < 2 or out[0] != batch or others[:-1] != out[:-1]:
        return None
    is_sum = labels == [batch, others[-1], *out[1:-1], out[-1]]
    if not is_sum and labels != [batch, out[-1], *out[1:-1], others[-1]]:
        return None
    ops = search_ops() if x.dtype == y.dtype == tf.float32 and product_dtype is None else None
    if ops is None:
        return None
    if is_sum:
        return lambda x, y: ops.rtf_once_sums(weights=y, values=x)
    return lambda x, y: ops.rtf_once_energies(queries=y, keys=x)


def _native(
    kernel: Callable[[Any, Any], Any], once: tuple[Any, Axes], other: tuple[Any, Axes], *_: Any, **__: Any
) -> Any:
    x, y = once[0], other[0]
    sizes, frames = tf.shape(y), tf.shape(x)[1]
    heads = tf.reduce_prod(sizes[1:-1])
    y = tf.reshape(y, tf.stack([sizes[0], heads, sizes[-1]]))
    product = kernel(tf.reshape(x, tf.stack([tf.shape(x)[0], frames, heads, tf.shape(x)[-1]])), y)
    return tf.reshape(product, tf.concat([sizes[:-1], tf.shape(product)[-1:]], axis=0))


@form(_native, where=_kernel)
def product_in_beam(
    once: tuple[Any, Axes],
    other: tuple[Any, Axes],
    out: Axes,
    *,
    batch: Hashable,
    beam: int,
    with_gradient: bool,
    product_dtype: Optional[str],
) -> Any:
    """Multiply two tensors with labelled axes, and sum over the labels missing in the result.

    :param once: tensor with an entry per sequence, and its labels
    :param other: tensor with an entry per hypothesis; the hypotheses of a sequence are neighbours; so in the result
    :param out: labels of the result, in order
    :param batch: the label of the batch axis, which all three have
    :param beam: hypotheses per sequence
    :param product_dtype: see `Semantics`
    """
    (x, labels), (y, others) = once, other
    letters = dict(zip(dict.fromkeys([*labels, *others]), string.ascii_letters))
    y_axis, into = list(others).index(batch), string.ascii_letters[len(letters)]
    y = split_axis(y, y_axis, [size_of(y, y_axis) // beam, beam])
    first = "".join(letters[label] for label in labels)
    second, result = (
        "".join(letters[label] + (into if label == batch else "") for label in part) for part in (others, out)
    )
    product = einsum("%s,%s->%s" % (first, second, result), reduced(x, product_dtype), reduced(y, product_dtype))
    return merge_axes(full(product, product_dtype), list(out).index(batch), 2)[0]


def attention_in_beam(weights: Weights, base: Factor, out: Labels, batch: Label) -> Optional[Any]:
    """Compute attention of the hypotheses of a search to keys and values that exist once per sequence.

    :param weights: of a product of keys, with an entry per sequence, and queries, with one per hypothesis, which are
        neighbours
    :param base: the values; equal axes of it and the weights have the same label
    :param out: labels of the axes of the result
    :param batch: that of the sequences and of the hypotheses
    :return: None if there is no native op for this
    """
    key_label = weights.labels[-1]
    query, key = weights.factors if key_label in weights.factors[1].labels else reversed(weights.factors)
    heads, size = query.labels[1:-1], query.labels[-1]
    fits = (
        len(heads) <= 1
        and query.labels[0] == batch
        and key.labels == (batch, key_label, *heads, size)
        and base.labels[:-1] == key.labels[:-1]
        and out == (batch, *heads, base.labels[-1])
        and not weights.dropout
    )
    ops = beam_attention_ops() if fits else None
    if ops is None or not pays(ONCE_ATTENTION_TRIAL, query.tensor.shape[-1], tf.float32):
        return None
    lengths = weights.lengths
    if lengths is not None and lengths.shape.rank == 0:
        lengths = tf.fill(tf.shape(query.tensor)[:1], lengths)
    queries, keys, values = (x.tensor if heads else tf.expand_dims(x.tensor, -2) for x in (query, key, base))
    y = native_once_attention(ops, queries, keys, values, lengths, scale=weights.scale)
    return y if heads else tf.squeeze(y, axis=-2)


#: Frames of a sequence of a trial, for each one of other trials; hypotheses of a sequence; heads.
_LONGER, _BEAM, _HEADS = 4, 12, 4


def _case(size: Size) -> Case:
    frames, scale = _LONGER * size.frames, size.width**-0.5
    lengths = np.repeat(_LONGER * ragged(size), _BEAM)
    queries, base = (_BEAM * size.batch, _HEADS, size.width), (size.batch, frames, _HEADS, size.width)

    def native(ops: Any, q: Any, k: Any, v: Any) -> list[Any]:
        return [native_once_attention(ops, q, k, v, tf.constant(lengths), scale=scale)]

    def plain(q: Any, k: Any, v: Any) -> list[Any]:
        def product(once: Any, other: Any, out: str) -> Any:
            options = {"batch": "b", "beam": _BEAM, "with_gradient": False, "product_dtype": None}
            return plain_form(product_in_beam)(once, other, out, **options)

        energies = product((k, "bshd"), (q * scale, "bhd"), "bhs")
        weights = masked_softmax(energies, tf.sequence_mask(lengths, frames)[:, None])
        return [product((v, "bshd"), (weights, "bhs"), "bhd")]

    return Case(draw((1.0, queries), (1.0, base), (1.0, base)), native, plain, has_gradients=False)


ONCE_ATTENTION_TRIAL = Trial(
    "attention once per sequence", "beam_attention", __name__, "ONCE_ATTENTION_TRIAL", _case, "numbers of a key",
    (32, 64, 128),
)  # fmt: skip
