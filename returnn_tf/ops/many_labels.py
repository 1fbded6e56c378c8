"""Cross entropy of ``softmax(x W + b)`` over many labels from x, W and b: no array of probabilities, few of the logits.

The logits of a block of frames are computed, turned into the gradient of the loss in the same memory, multiplied with x
and W, and forgotten. As the sum over all frames is one number, whatever is done with it scales all gradients alike, so
that they are known before the rest of the network is differentiated: three products per block as usual, none twice.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.product import large_ops
from returnn_tf.native.softmax import native_softmax_ce, softmax_ops
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.ops.mixed_precision import matmul, reduced
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

#: Logits in memory at once: 256 MB. Each further block reads and writes the gradient of W once more.
BLOCK = 2**26


@dataclasses.dataclass(frozen=True)
class TargetSpec:
    """What a frame is compared with, and the weight of its value.

    :param on: probability of its label
    :param off: probability of each other label
    :param entropy: subtracted from the cross entropy
    :param focal: exponent of ``1 - p[label]``, the factor of the difference
    """

    on: float = 1.0
    off: float = 0.0
    entropy: float = 0.0
    focal: float = 0.0


def many_labels_cross_entropy(
    x: Any,
    weights: Any,
    bias: Optional[Any],
    labels: Any,
    spec: TargetSpec,
    *,
    transposed: bool = False,
    with_gradient: bool = True,
    block: int = BLOCK,
    product_dtype: Optional[str] = None,
) -> tuple[Any, Any]:
    """Return the sums of the values and of the errors of all frames, scalars of float32, or float64 for such x.

    :param x: [frames, n]
    :param weights: [n, labels], or [labels, n] if ``transposed``
    :param bias: [labels], or None
    :param labels: int32 [frames], each within the labels
    :param with_gradient: compute the gradient along with the values; else only where it is asked for
    :param block: number of logits in memory at once
    :param product_dtype: see `Semantics`
    """
    if product_dtype and not large_ops(x, weights, transpose_b=transposed, product_dtype=product_dtype):
        x, weights, bias = (reduced(part, product_dtype) for part in (x, weights, bias))  # once for all blocks
    multiply = partial(matmul, product_dtype=product_dtype)
    count = weights.shape[0 if transposed else 1]
    frames_per_block = max(1, block // count)
    biased = bias is not None

    @custom_gradient
    def run(x: Any, weights: Any, bias: Any) -> Any:
        def compute(gradient: bool) -> _Sums:
            def step(begin: Any, end: Any) -> _Sums:
                return _block(x[begin:end], weights, bias, labels[begin:end], spec, multiply, transposed, gradient)

            return _over_blocks(step, tf.shape(x)[0], frames_per_block)

        found = compute(with_gradient)

        def backward(grad: Any, _: Any) -> Any:
            sums = found if with_gradient else compute(True)
            dx, dw, db = (_scaled(part, grad) for part in (sums.dx, sums.dw, sums.db))
            return tf.cast(dx, x.dtype), tf.cast(dw, weights.dtype), tf.cast(db, bias.dtype)

        return (found.value, found.errors), backward

    if not biased:
        bias = tf.zeros([count], weights.dtype)
    value, errors = run(x, weights, bias)
    return value, tf.stop_gradient(errors)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Sums over the frames of some blocks; the gradient by x is that of each of these frames."""

    value: Any
    errors: Any
    dx: Any
    dw: Any
    db: Any


def _block(
    x: Any,
    weights: Any,
    bias: Any,
    labels: Any,
    spec: TargetSpec,
    multiply: Callable[..., Any],
    transposed: bool,
    gradient: bool,
) -> _Sums:
    z = _wide(multiply(x, weights, transpose_b=transposed))
    values, errors, dz = cross_entropy_of_frames(z, _wide(bias), labels, spec, with_gradient=gradient)
    sums = tf.reduce_sum(values), tf.reduce_sum(errors)
    if not gradient:
        none = tf.zeros([0], z.dtype)
        return _Sums(*sums, none, none, none)
    db = tf.raw_ops.BiasAddGrad(out_backprop=dz)
    dz = tf.cast(dz, x.dtype)
    dx = multiply(dz, weights, transpose_b=not transposed)
    dw = multiply(dz, x, transpose_a=True) if transposed else multiply(x, dz, transpose_a=True)
    return _Sums(*sums, _wide(dx), _wide(dw), db)


def _over_blocks(step: Callable[[Any, Any], _Sums], frames: Any, size: int) -> _Sums:
    """Sum the blocks, which have nearly equal numbers of frames, at most ``size``."""
    blocks = tf.maximum(1, (frames + size - 1) // size)

    def border(index: Any) -> Any:
        return tf.cast(tf.cast(index, tf.int64) * tf.cast(frames, tf.int64) // tf.cast(blocks, tf.int64), tf.int32)

    first = step(0, border(1))
    parts = tf.TensorArray(first.dx.dtype, size=blocks, infer_shape=False, clear_after_read=True)

    def body(index: Any, value: Any, errors: Any, dw: Any, db: Any, parts: Any) -> Any:
        new = step(border(index), border(index + 1))
        added = value + new.value, errors + new.errors, dw + new.dw, db + new.db
        return (index + 1, *added, parts.write(index, new.dx))

    state = (tf.constant(1), first.value, first.errors, first.dw, first.db, parts.write(0, first.dx))
    _, value, errors, dw, db, parts = tf.while_loop(
        lambda index, *_: index < blocks, body, state, parallel_iterations=1
    )
    dx = parts.concat()
    dx.set_shape([None, *first.dx.shape[1:]])
    return _Sums(value, errors, dx, dw, db)


def _native(
    ops: Any, z: Any, bias: Any, labels: Any, spec: TargetSpec, *, with_gradient: bool = True
) -> tuple[Any, Any, Any]:
    found = native_softmax_ce(ops, z, bias, labels, with_gradient=with_gradient, **dataclasses.asdict(spec))
    return found.values, found.errors, found.gradient


def _ops_for(z: Any, *_: Any, **__: Any) -> Optional[Any]:
    ops = softmax_ops(z.dtype)
    return ops if ops and pays(SOFTMAX_TRIAL, z.shape[-1], z.dtype) else None


@form(_native, where=_ops_for)
def cross_entropy_of_frames(
    z: Any, bias: Any, labels: Any, spec: TargetSpec, *, with_gradient: bool = True
) -> tuple[Any, Any, Any]:
    """Return values and errors [frames], and the gradient of the values by z, which may be empty without gradient.

    :param z: [frames, labels]
    """
    z = z + bias
    errors = tf.cast(tf.not_equal(tf.argmax(z, axis=-1, output_type=tf.int32), labels), z.dtype)
    loss, gradient = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=z, labels=labels)
    hot = tf.one_hot(labels, z.shape[-1], dtype=z.dtype)
    # The cross entropy with (on - off) * one-hot + off; on + (labels - 1) * off is 1.
    value = loss
    if spec.off:
        log_p = tf.gather(z, labels, batch_dims=1) + loss  # log of the sum of all exponentials
        value = log_p - (spec.on - spec.off) * (log_p - loss) - spec.off * tf.reduce_sum(z, axis=-1)
        gradient += (1.0 - spec.on + spec.off) * hot - spec.off
    value -= spec.entropy
    if spec.focal:
        missed = tf.maximum(-tf.math.expm1(-loss), tf.cast(1e-12, z.dtype))
        weight = missed**spec.focal
        slope = spec.focal * value * weight / missed * (1.0 - missed)
        gradient = (weight + slope)[:, None] * gradient
        if spec.off:
            gradient += slope[:, None] * ((spec.on - spec.off - 1.0) * hot + spec.off)
        value *= weight
    return value, errors, gradient


def _scaled(x: Any, factor: Any) -> Any:
    """Multiply a large array, unless the factor is 1."""
    factor = tf.cast(factor, x.dtype)
    return tf.cond(tf.equal(factor, 1.0), lambda: x, lambda: x * factor)


def _wide(x: Any) -> Any:
    """Return it in float32, or in float64 if it is."""
    return x if x.dtype.size >= 4 else tf.cast(x, tf.float32)


#: Logits of a trial at most, 64 MB.
_MOST_TRIED = 2**24


def _case(size: Size) -> Case:
    frames = min(size.frames * size.batch, max(1, _MOST_TRIED // size.width))
    labels = tf.constant(np.random.default_rng(2).integers(0, size.width, frames), tf.int32)
    spec = TargetSpec(0.9, 0.1 / max(size.width - 1, 1))

    def native(ops: Any, z: Any, bias: Any) -> list[Any]:
        return list(_native(ops, z, bias, labels, spec))

    def plain(z: Any, bias: Any) -> list[Any]:
        return list(plain_form(cross_entropy_of_frames)(z, bias, labels, spec))

    return Case(draw((2.0, (frames, size.width)), (1.0, (size.width,))), native, plain, has_gradients=False)


SOFTMAX_TRIAL = Trial(
    "softmax and cross entropy", "softmax", __name__, "SOFTMAX_TRIAL", _case, "labels", (1000, 10_000, 100_000)
)
