"""The sums over blocks of frames: numpy, blocks of any size, types, no frames at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.many_labels import TargetSpec, many_labels_cross_entropy
from returnn_tf.util.lazy_tf import tf

LABELS = 70


def inputs(frames: int, dtype: str = "float32") -> list[Any]:
    """Return x [frames, 5], W [5, labels], b [labels] and labels [frames]."""
    rng = np.random.RandomState(1)
    arrays = [rng.normal(0, 1, shape) for shape in ((frames, 5), (5, LABELS), (LABELS,))]
    return [*(tf.constant(a, dtype) for a in arrays), tf.constant(rng.randint(0, LABELS, frames), tf.int32)]


def with_gradients(x: Any, w: Any, b: Any, labels: Any, spec: TargetSpec, **options: Any) -> list[Any]:
    """Return value, errors and gradients by x, W and b, as arrays."""
    with tf.GradientTape() as tape:
        tape.watch([x, w, b])
        value, errors = many_labels_cross_entropy(x, w, b, labels, spec, **options)
    return [a.numpy() for a in (value, errors, *tape.gradient(value, [x, w, b]))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block", [1, LABELS, 3 * LABELS, 100 * LABELS])
def test_blocks(block: int, dtype: str) -> None:
    """As many frames at once as fit."""
    x, w, b, labels = inputs(7, dtype)
    z = x.numpy() @ w.numpy() + b.numpy()
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    hot = np.eye(LABELS)[labels.numpy()]
    dz = p - hot
    expected = [-(hot * np.log(p)).sum(), (z.argmax(axis=1) != labels.numpy()).sum()]
    expected += [dz @ w.numpy().T, x.numpy().T @ dz, dz.sum(axis=0)]
    for got, wanted in zip(with_gradients(x, w, b, labels, TargetSpec(), block=block), expected):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_few_digits(dtype: str) -> None:
    """The sums are float32, the gradients have the types of the inputs."""
    exact = with_gradients(*inputs(7), TargetSpec())
    got = with_gradients(*inputs(7, dtype), TargetSpec(), block=2 * LABELS)
    assert [a.dtype.name for a in got] == ["float32"] * 2 + [dtype] * 3
    for a, wanted in zip(got[:1] + got[2:], exact[:1] + exact[2:]):
        np.testing.assert_allclose(a.astype("float32"), wanted, rtol=0.05, atol=0.05)


def test_no_frames() -> None:
    value, errors, dx, dw, db = with_gradients(*inputs(0), TargetSpec())
    assert value == 0 and errors == 0 and dx.shape == (0, 5) and not dw.any() and not db.any()


SPEC = TargetSpec(0.9, 0.1 / (LABELS - 1), 0.5, 1.5)


def test_without_native_ops() -> None:
    expected = with_gradients(*inputs(7), SPEC)
    with portable_ops():
        for a, wanted in zip(with_gradients(*inputs(7), SPEC), expected):
            np.testing.assert_allclose(a, wanted, rtol=1e-5, atol=1e-5)
