"""Checks that both forms of the MDLSTM have to pass: the native op and plain TensorFlow."""

import numpy as np
import pytest

from returnn_tf.util.lazy_tf import tf
from tests.native import reference

FLIPS = [(False, False), (True, True), (False, True), (True, False)]
# batch, height, width, units; sizes beside the tiles of the kernel (16 lanes, 64 columns, 6 rows) and on them
SIZES = [(1, 1, 1, 1), (3, 4, 5, 3), (2, 1, 6, 4), (2, 6, 1, 16), (4, 3, 7, 2), (2, 5, 4, 37), (3, 4, 4, 64)]


def draw(batch, height, width, n, count=1, seed=1):
    """z, left, up (of each direction), heights, widths; the first image is whole, one is empty if there are several."""
    rng = np.random.RandomState(seed)
    shapes = [(batch, height, width, 5 * n)] * count + [(n, 5 * n)] * 2 * count
    arrays = [rng.normal(0, 0.5, shape).astype("float32") for shape in shapes]
    heights, widths = (rng.randint(0, size + 1, batch).astype("int32") for size in (height, width))
    heights[:1], widths[:1], widths[1:2] = height, width, 0
    return arrays, heights, widths


def run(form, arrays, heights, widths, flips, stable=True):
    """Return the directions of one of the forms."""
    k = len(flips)
    sizes = tf.constant(heights), tf.constant(widths)
    return form(arrays[:k], arrays[k : 2 * k], arrays[2 * k :], *sizes, flips, stable=stable)


def expected(arrays, heights, widths, flips, stable=True):
    """Return the results of numpy."""
    k = len(flips)
    return [
        reference.mdlstm(arrays[d], arrays[k + d], arrays[2 * k + d], heights, widths, flip, stable)
        for d, flip in enumerate(flips)
    ]


def gradients(form, arrays, heights, widths, flips, weights, stable=True):
    """Return h of all directions, and the gradients of their weighted sum."""
    tensors = [tf.constant(x) for x in arrays]

    @tf.function
    def both():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            h = run(form, tensors, heights, widths, flips, stable)
            objective = sum(tf.reduce_sum(x * weight) for x, weight in zip(h, weights))
        return h, tape.gradient(objective, tensors)

    return both()


def check_values_and_gradients(form, size, flips, stable):
    """Check values, and the gradient along a random direction by differences of numpy in float64."""
    arrays, heights, widths = draw(*size, count=len(flips))
    rng = np.random.RandomState(2)
    weights = [rng.normal(0, 1, (*size[:3], size[3])).astype("float32") for _ in flips]
    h, grads = gradients(form, arrays, heights, widths, flips, weights, stable)
    for result, value in zip(h, expected(arrays, heights, widths, flips, stable)):
        np.testing.assert_allclose(result, value, atol=1e-5)

    def value_at(moved):
        results = expected(moved, heights, widths, flips, stable)
        return sum(float((x * w).sum()) for x, w in zip(results, weights))

    for index, gradient in enumerate(grads):
        direction = np.random.RandomState(index).normal(0, 1, arrays[index].shape)
        moved = [[x.astype("float64") for x in arrays] for _ in range(2)]
        moved[0][index] += 1e-5 * direction
        moved[1][index] -= 1e-5 * direction
        slope = (value_at(moved[0]) - value_at(moved[1])) / 2e-5
        assert float(np.sum(gradient * direction)) == pytest.approx(slope, rel=5e-4, abs=5e-4)


def check_padding(form):
    """Check that NaN in the padding changes nothing, nor does the gradient that comes from there."""
    size = (3, 5, 6, 20)
    arrays, heights, widths = draw(*size, count=4)
    weights = [np.random.RandomState(3).normal(0, 1, size).astype("float32")] * 4
    rows, columns = np.arange(5)[:, None], np.arange(6)
    padded = (rows >= heights[:, None, None]) | (columns >= widths[:, None, None])
    dirty = [x.copy() for x in arrays]
    for x in dirty[:4]:
        x[padded] = np.nan
    clean, seen = (gradients(form, x, heights, widths, FLIPS, weights) for x in (arrays, dirty))
    for one, other in zip([*clean[0], *clean[1]], [*seen[0], *seen[1]]):
        np.testing.assert_array_equal(one, other)
    for x in [*seen[0], *seen[1][:4]]:
        assert not np.any(x.numpy()[padded])


def check_empty(form, size):
    """Check arrays without images, rows or columns."""
    arrays, heights, widths = draw(*size, 2, count=2)
    h, grads = gradients(form, arrays, heights, widths, FLIPS[:2], [np.zeros((*size, 2), "float32")] * 2)
    assert [x.shape.as_list() for x in h] == [[*size, 2]] * 2
    for gradient in grads[2:]:
        np.testing.assert_array_equal(gradient, np.zeros((2, 10)))
