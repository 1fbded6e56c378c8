"""The multi-dimensional LSTM over images: cells see the cell to the left, the cell above and their own pixel.

Graves & Schmidhuber 2009, "Offline Handwriting Recognition with Multidimensional Recurrent Neural Networks"; the stable
cell is that of Leifert et al. 2016, "Cells in Multidimensional Recurrent Neural Networks". For pixel (i, j):

    z = x[i, j] W + h[i, j - 1] V_h + h[i - 1, j] V_v + b,    split into i, f, l, o, a
    stable:            s = sigmoid(f) (sigmoid(l) c[i, j - 1] + (1 - sigmoid(l)) c[i - 1, j])
    two forget gates:  s = sigmoid(f) c[i, j - 1] + sigmoid(l) c[i - 1, j]
    c[i, j] = s + sigmoid(i) tanh(a)
    h[i, j] = sigmoid(o) tanh(c[i, j])

The stable state stays within a mean of its predecessors; with two forget gates it can double with each pixel. A
direction runs from one corner of each image, whatever its size, to the opposite one. All cells of an anti-diagonal are
independent: height + width - 1 steps instead of height * width (Voigtlaender et al. 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.native.dispatch import form
from returnn_tf.native.library import has_type
from returnn_tf.native.mdlstm import mdlstm_ops, native_mdlstm
from returnn_tf.native.product import rounds
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, in_type
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.util.lazy_tf import tf

GATES = 5
"""Width of the projected input, in units of n: gates i, f, l, o and the cell input a."""

Flips = tuple[bool, bool]
"""Whether a direction runs from the last row to the first one, and from the last column to the first one."""


def cell(z: Any, c_left: Any, c_up: Any, stable: bool = True) -> tuple[Any, Any]:
    """Compute (h, c) [..., n] of a cell from the sum of its inputs [..., 5 n] and the states of both predecessors."""
    i, f, mix, o, a = tf.split(z, GATES, axis=-1)
    f, mix = tf.sigmoid(f), tf.sigmoid(mix)
    kept = f * (mix * c_left + (1.0 - mix) * c_up) if stable else f * c_left + mix * c_up
    c = kept + tf.sigmoid(i) * tf.tanh(a)
    return tf.sigmoid(o) * tf.tanh(c), c


def mdlstm(
    z: Sequence[Any],
    left: Sequence[Any],
    up: Sequence[Any],
    heights: Any,
    widths: Any,
    flips: Sequence[Flips],
    *,
    stable: bool = True,
) -> list[Any]:
    """Run all directions in one loop over the anti-diagonals, in plain TensorFlow.

    :param z: per direction, the projected input, with bias [batch, height, width, 5 n]
    :param left: per direction, V_h [n, 5 n]
    :param up: per direction, V_v [n, 5 n]
    :param heights: int32 [batch], at most ``height``
    :param widths: int32 [batch], at most ``width``
    :param flips: per direction, where it starts
    :param stable: the stable cell, else two forget gates
    :return: per direction, h [batch, height, width, n], 0 in the padding
    """
    n = left[0].shape[0]
    height, width = tf.shape(z[0])[1], tf.shape(z[0])[2]
    i, j = tf.range(height)[:, None], tf.range(width)
    inside = tf.logical_and(i < heights[:, None, None], j < widths[:, None, None])[..., None]
    # Padding reaches neither a cell nor a gradient, even if it is NaN.
    inputs = [_flipped(tf.where(inside, x, tf.zeros_like(x)), heights, widths, flip) for x, flip in zip(z, flips)]
    diagonals = _skewed(tf.stack(inputs), height, width)
    h = _run(diagonals, tf.concat([tf.stack(left), tf.stack(up)], axis=1), width, stable)
    image = _straight(h, height, width)
    result = []
    for k, flip in enumerate(flips):
        out = _flipped(tf.where(inside, image[k], tf.zeros_like(image[k])), heights, widths, flip)
        result.append(tf.ensure_shape(out, [z[k].shape[0], z[k].shape[1], z[k].shape[2], n]))
    return result


def _run(diagonals: Any, weights: Any, width: Any, stable: bool) -> Any:
    """Run the recurrence.

    :param diagonals: [diagonal, direction, row, batch, 5 n]
    :param weights: V_h above V_v [direction, 2 n, 5 n]
    :return: h [diagonal, direction, row, batch, n]
    """
    n = weights.shape[1] // 2
    shape = tf.shape(diagonals)
    count, height = shape[0], shape[2]
    inputs = tf.TensorArray(diagonals.dtype, count, element_shape=diagonals.shape[1:]).unstack(diagonals)
    nothing = tf.zeros(tf.stack([shape[1], height, shape[3], n]), diagonals.dtype)
    # Entry 0 is the state before the image, so that the array can be stacked without any pixel.
    outputs = tf.TensorArray(diagonals.dtype, count + 1, element_shape=[None, None, None, n]).write(0, nothing)

    def step(d: Any, h: Any, c: Any, outputs: Any) -> Any:
        """Compute cell (i, d - i) for all i from ``begin`` to ``end``; h and c are indexed by i + 1, else 0."""
        begin, end = tf.maximum(d - width + 1, 0), tf.minimum(d + 1, height)
        h_both = tf.concat([h[:, begin + 1 : end + 1], h[:, begin:end]], axis=-1)
        z = inputs.read(d)[:, begin:end]
        product = tf.matmul(tf.reshape(h_both, [weights.shape[0], -1, 2 * n]), weights)
        h, c = cell(z + tf.reshape(product, tf.shape(z)), c[:, begin + 1 : end + 1], c[:, begin:end], stable)
        around = [[0, 0], [begin + 1, height - end], [0, 0], [0, 0]]
        h, c = tf.pad(h, around), tf.pad(c, around)
        return d + 1, h, c, outputs.write(d + 1, h[:, 1:])

    zeros = tf.zeros(tf.stack([shape[1], height + 1, shape[3], n]), diagonals.dtype)
    by_row = tf.TensorShape([None, None, None, n])
    invariants = (tf.TensorShape([]), by_row, by_row, tf.TensorShape(None))
    result = tf.while_loop(lambda d, *_: d < count, step, (0, zeros, zeros, outputs), shape_invariants=invariants)
    return result[3].stack()[1:]


def _flipped(x: Any, heights: Any, widths: Any, flips: Flips) -> Any:
    """Flip each image within its own size; x is [batch, height, width, n]."""
    for axis, lens in enumerate((heights, widths), start=1):
        if flips[axis - 1]:
            x = tf.reverse_sequence(x, lens, seq_axis=axis, batch_axis=0)
    return x


def _skewed(x: Any, height: Any, width: Any) -> Any:
    """Skew [direction, batch, height, width, m] to [diagonal, direction, row, batch, m], 0 outside the image.

    Rows that are ``height + width`` long, read with one entry less, are shifted by one more entry each.
    """
    n_diagonals = tf.maximum(height + width - 1, 0)
    x = tf.pad(tf.transpose(x, [2, 3, 0, 1, 4]), [[0, 0], [0, height], [0, 0], [0, 0], [0, 0]])
    rest = tf.shape(x)[2:]
    flat = tf.reshape(x, tf.concat([[height * (height + width)], rest], axis=0))[: height * n_diagonals]
    skewed = tf.reshape(flat, tf.concat([[height, n_diagonals], rest], axis=0))
    return tf.ensure_shape(tf.transpose(skewed, [1, 2, 0, 3, 4]), [None, x.shape[2], None, x.shape[3], x.shape[4]])


def _straight(x: Any, height: Any, width: Any) -> Any:
    """Invert `_skewed`: [diagonal, direction, row, batch, m] -> [direction, batch, height, width, m]."""
    x = tf.transpose(x, [2, 0, 1, 3, 4])
    pixels, rest = height * tf.shape(x)[1], tf.shape(x)[2:]
    flat = tf.reshape(x, tf.concat([[pixels], rest], axis=0))
    missing = height * (height + width) - pixels
    flat = tf.pad(flat, [[0, missing], [0, 0], [0, 0], [0, 0]])
    rows = tf.reshape(flat, tf.concat([[height, height + width], rest], axis=0))[:, :width]
    return tf.transpose(rows, [2, 3, 0, 1, 4])


def mdlstm_ops_for(dtype: tf.DType, units: int) -> Any:
    """Return the native ops if they have this type, and are used for this number of units."""
    ops = has_type("mdlstm", dtype) and mdlstm_ops()
    return ops if ops and pays(MDLSTM_TRIAL, units, dtype) else None


def run_native_mdlstm(
    ops: Any,
    z: Sequence[Any],
    left: Sequence[Any],
    up: Sequence[Any],
    heights: Any,
    widths: Any,
    flips: Sequence[Flips],
    *,
    stable: bool = True,
    train: bool = False,
    product_dtype: Optional[str] = None,
) -> list[Any]:
    """Run all directions by the native op; for arguments see `run_mdlstm`.

    On a GPU the whole op is in the type of products. On a CPU that can, it rounds the factors of its products, but in
    training only, as other graphs may run on other CPUs.

    :param ops: what `mdlstm_ops_for` returned
    """
    if product_dtype is not None and mdlstm_ops_for(tf.as_dtype(product_dtype), left[0].shape[0]):
        z, left, up = ([reduced(x, product_dtype) for x in arrays] for arrays in (z, left, up))
    rounded = train and rounds("mdlstm", z[0].dtype, product_dtype)
    result = native_mdlstm(ops, z, left, up, heights, widths, flips, stable=stable, rounded=rounded)
    return [full(h, product_dtype) for h in result]


@form(run_native_mdlstm, where=lambda z, left, *_, **__: mdlstm_ops_for(z[0].dtype, left[0].shape[0]))
def run_mdlstm(
    z: Sequence[Any],
    left: Sequence[Any],
    up: Sequence[Any],
    heights: Any,
    widths: Any,
    flips: Sequence[Flips],
    *,
    stable: bool = True,
    train: bool = False,
    product_dtype: Optional[str] = None,
) -> list[Any]:
    """Run all directions; the other parameters are those of `mdlstm`.

    :param train: the graph is for training
    :param product_dtype: type of recurrent products, as far as there are kernels for it; see `Semantics`
    """
    return mdlstm(z, left, up, heights, widths, flips, stable=stable)


#: Rows of the images of the trial; their columns are its frames.
_HEIGHT = 10


def _case(size: Size) -> Case:
    n, shape = size.width, (size.batch, _HEIGHT, size.frames)
    inputs = draw((0.5, (*shape, 5 * n)), (0.5 * n**-0.5, (n, 5 * n)), (0.5 * n**-0.5, (n, 5 * n)))
    heights, widths = (np.linspace(most, (most + 1) // 2, size.batch).astype("int32") for most in shape[1:])

    def native(ops: Any, z: Any, left: Any, up: Any) -> list[Any]:
        return native_mdlstm(ops, [z], [left], [up], heights, widths, [(False, True)])

    def plain(z: Any, left: Any, up: Any) -> list[Any]:
        return mdlstm([z], [left], [up], tf.constant(heights), tf.constant(widths), [(False, True)])

    return Case(inputs, in_type(native, size.dtype), plain)


MDLSTM_TRIAL = Trial(
    "mdlstm", "mdlstm", __name__, "MDLSTM_TRIAL", _case, "units", (16, 64, 128), ("float32", "bfloat16", "float16")
)
