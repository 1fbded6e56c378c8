"""Comparison of an op and its gradient with a formula in numpy, for the self-tests of all ops."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.errors import NativeOpError
from returnn_tf.util.lazy_tf import tf

Arrays = Sequence[NDArray[Any]]

_STEP = 1e-4

_SEQUENCES = ((5, 9, 37), (4, 70, 97))
"""Frames, batch, units of the recurrences compared; the second sizes use the tile unit of a CPU that has one."""


def compare_recurrence(
    name: str,
    op: Callable[..., Sequence[tf.Tensor]],
    formula: Callable[..., Arrays],
    shapes: Callable[[int, int, int], Sequence[tuple[int, ...]]],
    **tolerances: float,
) -> None:
    """Compare a recurrence on ragged batches, in both directions.

    :param op: takes its tensors, ``lengths`` int32 [batch] and ``reverse``; so does ``formula``, with arrays
    :param shapes: shapes of the inputs, given the numbers of frames, sequences and units
    :param tolerances: see `compare`
    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    for n_frames, batch, n in _SEQUENCES:
        lengths = rng.randint(0, n_frames + 1, batch).astype("int32")
        lengths[:2] = n_frames, 0
        inputs = [rng.normal(0, 0.5, shape) for shape in shapes(n_frames, batch, n)]
        for reverse in (False, True):
            options = {"lengths": lengths, "reverse": reverse}
            compare(name, partial(op, **options), partial(formula, **options), inputs, **tolerances)


def compare_rounded_recurrence(
    name: str,
    op: Callable[..., Sequence[tf.Tensor]],
    formula: Callable[..., Arrays],
    shapes: Callable[[int, int, int], Sequence[tuple[int, ...]]],
) -> None:
    """Compare a recurrence that rounds the factors of its products to bfloat16; for arguments see `compare_recurrence`.

    :param op: takes ``rounded``, too
    :raises NativeOpError: they differ
    """
    compare_recurrence(_of_rounded(name), partial(op, rounded=True), formula, shapes, **_ROUNDED)


def compare_rounded(
    name: str,
    op: Callable[..., Sequence[tf.Tensor]],
    formula: Callable[..., Arrays],
    inputs: Arrays,
) -> None:
    """Compare an op that rounds the factors of its products to bfloat16; for arguments see `compare`.

    :raises NativeOpError: they differ
    """
    compare(_of_rounded(name), op, formula, inputs, **_ROUNDED)


#: The formula is exact: results differ from it by up to 0.06, derivatives by up to 0.04 of the size of their terms.
_ROUNDED = {"tolerance": 0.2, "slope_tolerance": 0.1}


def _of_rounded(name: str) -> str:
    return name + " with products of rounded factors"


def compare(
    name: str,
    op: Callable[..., Sequence[tf.Tensor]],
    formula: Callable[..., Arrays],
    inputs: Arrays,
    tolerance: float = 1e-5,
    slope_tolerance: float = 1e-4,
) -> None:
    """Compare the results, and the derivative of a random sum of them in a random direction.

    :param name: name of the op, for the message
    :param op: takes float32 tensors and returns tensors
    :param formula: the same in numpy, with float64 arrays
    :param inputs: the op must have gradients for all of them
    :param tolerance: for the results
    :param slope_tolerance: for the derivative, relative to the size of its terms
    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(2)
    exact = [x.astype("float64") for x in inputs]
    expected = formula(*exact)
    weights = [rng.normal(0, 1, np.shape(y)) for y in expected]
    directions = [rng.normal(0, 1, x.shape) for x in inputs]
    tensors = [tf.constant(x, tf.float32) for x in inputs]
    with exact_products():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = op(*tensors)
            loss = tf.add_n([tf.reduce_sum(y * tf.constant(w, tf.float32)) for y, w in zip(results, weights)])
        gradients = tape.gradient(loss, tensors)
    for index, (got, y) in enumerate(zip(results, expected)):
        if not np.allclose(got, y, atol=tolerance, rtol=tolerance):
            raise NativeOpError("the %s that was compiled gives wrong results (number %d)" % (name, index))

    def shifted(step: float) -> float:
        parts = formula(*(x + step * d for x, d in zip(exact, directions)))
        return float(sum((w * y).sum() for w, y in zip(weights, parts)))

    slopes = [_slope(d, g) for d, g in zip(directions, gradients)]
    numeric = (shifted(_STEP) - shifted(-_STEP)) / (2 * _STEP)
    if not abs(sum(slopes) - numeric) <= slope_tolerance * (1 + sum(map(abs, slopes))):  # NaN is wrong too
        raise NativeOpError("the %s that was compiled gives wrong gradients" % name)


_inside = 0
_before = False
_lock = threading.Lock()


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disable TensorFloat-32 for TensorFlow's products on a GPU: the tests require float precision.

    The flag is global, so threads inside at the same time are counted.
    """
    global _inside, _before
    flag = tf.config.experimental
    with _lock:
        if not _inside:
            _before = flag.tensor_float_32_execution_enabled()
            flag.enable_tensor_float_32_execution(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                flag.enable_tensor_float_32_execution(_before)


def _slope(direction: NDArray[Any], gradient: Any) -> float:
    return float((direction * gradient.numpy().astype("float64")).sum())
