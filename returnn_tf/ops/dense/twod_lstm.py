"""A two-dimensional LSTM over the grid of target and source frames.

Cell of Leifert et al. 2016, "Cells in Multidimensional Recurrent Neural Networks" (the stable cell, with one forget
gate and a gate ``lambda`` that mixes both predecessors), used for image lines by Voigtlaender et al. 2016 and for
translation by Bahar et al. 2018. With i the target and j the source frame:

    z[i, j] = x[i, j] W + h[i, j - 1] V_h + h[i - 1, j] V_v + b,    split into i, f, l, o, a
    c[i, j] = sigmoid(f) (sigmoid(l) c[i, j - 1] + (1 - sigmoid(l)) c[i - 1, j]) + sigmoid(i) tanh(a)
    h[i, j] = sigmoid(o) tanh(c[i, j])

where x[i, j] is the source frame j and the target frame i, concatenated. States before the grid are 0. Nothing flows
from the padding into valid cells, so only the pooling over the source has to know the lengths.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from returnn_tf.native.dispatch import form
from returnn_tf.ops.dense.mdlstm import GATES, cell, mdlstm_ops_for, run_native_mdlstm
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class TwoDLstmWeights:
    """The recurrent weights.

    :param left: V_h [n, 5 n], for the previous source frame
    :param up: V_v [n, 5 n], for the previous target frame
    """

    left: Any
    up: Any


def row(z_source: Any, z_target: Any, h_up: Any, c_up: Any, weights: TwoDLstmWeights) -> tuple[Any, Any]:
    """Compute all source frames of one target frame from the row of the previous target frame.

    :param z_source: projected source [source, batch, 5 n]
    :param z_target: projected target frame, with bias [batch, 5 n]
    :param h_up: [source, batch, n], and ``c_up``: the row before
    :return: h and c [source, batch, n]
    """
    n = h_up.shape[-1]
    size, batch = tf.shape(h_up)[0], tf.shape(h_up)[1]
    # The contribution of the previous row is known for the whole row: one product.
    z = z_source + z_target[None] + _product(h_up, weights.up)
    inputs = _array(size, GATES * n, z.dtype).unstack(z)
    above = _array(size, n, c_up.dtype).unstack(c_up)

    def step(j: Any, h: Any, c: Any, h_all: Any, c_all: Any) -> Any:
        h, c = cell(inputs.read(j) + tf.matmul(h, weights.left), c, above.read(j))
        return j + 1, h, c, h_all.write(j + 1, h), c_all.write(j + 1, c)

    zeros = tf.zeros([batch, n], z.dtype)
    # Entry 0 is the state before the row, so that the arrays can be stacked without any frame.
    arrays = [_array(size + 1, n, z.dtype).write(0, zeros) for _ in range(2)]
    _, _, _, h_all, c_all = tf.while_loop(lambda j, *_: j < size, step, (0, zeros, zeros, *arrays))
    return h_all.stack()[1:], c_all.stack()[1:]


def _by_mdlstm(
    ops: Any, z_source: Any, z_target: Any, source_lens: Any, weights: TwoDLstmWeights, pooling: str, **options: Any
) -> Any:
    z = whole_grid(z_source, z_target)
    rows = tf.fill([tf.shape(z)[0]], tf.shape(z)[1])
    (h,) = run_native_mdlstm(ops, [z], [weights.left], [weights.up], rows, source_lens, [(False, False)], **options)
    return pooled_image(h, source_lens, pooling)


@form(
    _by_mdlstm,
    where=lambda z_source, _, __, weights, *___, **____: mdlstm_ops_for(z_source.dtype, weights.left.shape[0]),
)
def pooled_grid(
    z_source: Any,
    z_target: Any,
    source_lens: Any,
    weights: TwoDLstmWeights,
    pooling: str,
    *,
    train: bool = False,
    product_dtype: Optional[str] = None,
) -> Any:
    """Compute the whole grid, pooled over the source, in a loop over anti-diagonals, whose cells are independent.

    :param z_source: projected source [source, batch, 5 n]
    :param z_target: projected target, with bias [target, batch, 5 n]
    :param source_lens: int [batch]
    :param pooling: a key of `POOLINGS`
    :param train: the graph is for training, and ``product_dtype``: see `run_mdlstm`
    :return: [target, batch, n]
    """
    n = weights.left.shape[0]
    source, target = tf.shape(z_source)[0], tf.shape(z_target)[0]
    shape = tf.stack([target, tf.shape(z_target)[1], n])
    pool = POOLINGS[pooling]
    pooled = tf.fill(shape, tf.constant(pool.initial, z_source.dtype))
    by_target = tf.range(target)
    backwards = tf.reverse(z_source, [0])

    def diagonal(d: Any, h: Any, c: Any, pooled: Any) -> Any:
        """Compute cell (i, d - i) for all i from ``begin`` to ``end``; h and c are indexed by i, and 0 elsewhere."""
        begin, end = tf.maximum(d - source + 1, 0), tf.minimum(d + 1, target)
        first = source - 1 - (d - begin)  # the source frame d - begin, and from there on backwards
        z = backwards[first : first + end - begin] + z_target[begin:end]
        h_left, c_left = h[begin:end], c[begin:end]
        h_up, c_up = _above(h, begin, end), _above(c, begin, end)
        h, c = cell(z + _product(h_left, weights.left) + _product(h_up, weights.up), c_left, c_up)
        around = [[begin, target - end], [0, 0], [0, 0]]
        h, c = _padded(h, around, n), _padded(c, around, n)
        j = (d - by_target)[:, None]
        inside = tf.logical_and(j >= 0, j < source_lens)
        pooled = pool.add(pooled, h, inside[:, :, None], tf.equal(j, source_lens - 1)[:, :, None])
        return d + 1, h, c, pooled

    zeros = tf.zeros(shape, z_source.dtype)
    by_frame = tf.TensorShape([None, None, n])
    shapes = (tf.TensorShape([]), by_frame, by_frame, by_frame)
    count = tf.where(tf.logical_or(tf.equal(source, 0), tf.equal(target, 0)), 0, source + target - 1)
    result = tf.while_loop(lambda d, *_: d < count, diagonal, (0, zeros, zeros, pooled), shape_invariants=shapes)
    return pool.finish(result[3], source_lens)


def whole_grid(z_source: Any, z_target: Any) -> Any:
    """Return the sum of both projections for all cells, the input of `returnn_tf.ops.dense.mdlstm.mdlstm`.

    :param z_source: [source, batch, 5 n]
    :param z_target: [target, batch, 5 n]
    :return: [batch, target, source, 5 n]
    """
    return tf.transpose(z_source, [1, 0, 2])[:, None] + tf.transpose(z_target, [1, 0, 2])[:, :, None]


def pooled_image(h: Any, source_lens: Any, pooling: str) -> Any:
    """Pool all rows [batch, target, source, n] over the source: [target, batch, n]."""
    pool = POOLINGS[pooling]
    j = tf.range(tf.shape(h)[2])[:, None, None, None]
    lens = source_lens[:, None]
    by_source = tf.transpose(h, [2, 1, 0, 3])
    return pool.finish(pool.over_axis(by_source, j < lens, tf.equal(j, lens - 1)), source_lens)


def pooled_row(h: Any, source_lens: Any, pooling: str) -> Any:
    """Pool a row [source, batch, n] over the source: [batch, n]."""
    pool = POOLINGS[pooling]
    j = tf.range(tf.shape(h)[0])[:, None]
    inside, last = (j < source_lens)[:, :, None], tf.equal(j, source_lens - 1)[:, :, None]
    return pool.finish(pool.over_axis(h, inside, last), source_lens)


@dataclasses.dataclass(frozen=True)
class Pooling:
    """Pooling of the cells of a row to one vector.

    :param initial: value of the accumulator before the first cell
    :param add: (accumulator, h, whether the cell is valid, whether it is the last one) -> accumulator
    :param over_axis: (h [source, batch, n], valid, last [source, batch, 1]) -> accumulator [batch, n]
    :param finish: (accumulator [..., batch, n], lengths of the source [batch]) -> result, 0 where the source is empty
    """

    initial: float
    add: Callable[[Any, Any, Any, Any], Any]
    over_axis: Callable[[Any, Any, Any], Any]
    finish: Callable[[Any, Any], Any]


def _where_any(x: Any, lens: Any) -> Any:
    return tf.where((lens > 0)[:, None], x, tf.zeros_like(x))


_MAX = Pooling(
    float("-inf"),
    lambda acc, h, inside, last: tf.where(inside, tf.maximum(acc, h), acc),
    lambda h, inside, last: tf.reduce_max(tf.where(inside, h, tf.fill(tf.shape(h), float("-inf"))), axis=0),
    _where_any,
)
_LAST = Pooling(
    0.0,
    lambda acc, h, inside, last: tf.where(last, h, acc),
    lambda h, inside, last: tf.reduce_sum(tf.where(last, h, tf.zeros_like(h)), axis=0),
    lambda acc, lens: acc,
)
_MEAN = Pooling(
    0.0,
    lambda acc, h, inside, last: tf.where(inside, acc + h, acc),
    lambda h, inside, last: tf.reduce_sum(tf.where(inside, h, tf.zeros_like(h)), axis=0),
    lambda acc, lens: acc / tf.cast(tf.maximum(lens, 1), acc.dtype)[:, None],
)

POOLINGS: dict[str, Pooling] = {"last": _LAST, "max": _MAX, "mean": _MEAN, "avg": _MEAN}
"""By the option ``pooling``."""


def _product(x: Any, weights: Any) -> Any:
    """Multiply [a, b, n] by [n, m] as one matrix product."""
    flat = tf.matmul(tf.reshape(x, [-1, weights.shape[0]]), weights)
    return tf.reshape(flat, tf.concat([tf.shape(x)[:2], [weights.shape[1]]], axis=0))


def _above(x: Any, begin: Any, end: Any) -> Any:
    """Return entries begin - 1 to end - 1 of the first axis, zeros before entry 0."""
    return tf.pad(x, [[1, 0], [0, 0], [0, 0]])[begin:end]


def _padded(x: Any, around: Any, n: int) -> Any:
    x = tf.pad(x, around)
    x.set_shape([None, None, n])
    return x


def _array(size: Any, width: int, dtype: Any) -> Any:
    return tf.TensorArray(dtype, size, element_shape=[None, width])
