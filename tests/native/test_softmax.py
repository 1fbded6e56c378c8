"""The native softmax over many labels: against its form in TensorFlow, wrong labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.native.softmax import native_softmax_ce, softmax_ops
from returnn_tf.ops.many_labels import TargetSpec, cross_entropy_of_frames
from returnn_tf.util.lazy_tf import tf

LABELS = 70
SPEC = TargetSpec(0.9, 0.1 / (LABELS - 1), 0.5, 1.5)


@pytest.fixture(scope="module")
def ops() -> Any:
    found = softmax_ops(tf.float32)
    assert found is not None, "the native softmax has to compile where the tests run"
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("spec", [TargetSpec(), TargetSpec(0.9, 0.1 / (LABELS - 1)), SPEC], ids=str)
def test_forms_agree(ops: Any, spec: TargetSpec) -> None:
    """Large logits, several of them equal and greatest; one minus infinity where nothing is smoothed; NaN."""
    z = 20 * np.random.RandomState(3).normal(0, 1, (6, LABELS)).astype("float32")
    z[0, [3, 5]] = z[0].max() + 1
    z[1, [3, 5]] = z[1].max() + 1
    z[2, :3] = -np.inf if not spec.off else -90.0
    z[3, 7] = np.nan
    labels = tf.constant([3, 5, 6, 6, 1, 2])
    bias = tf.zeros([LABELS])
    got = native_softmax_ce(ops, tf.constant(z), bias, labels, with_gradient=True, **vars(spec))
    with portable_ops():
        expected = cross_entropy_of_frames(tf.constant(z), bias, labels, spec)
    for a, wanted in zip((got.values, got.errors, got.gradient), expected):
        a, wanted = a.numpy(), wanted.numpy()
        if a.ndim == 2:  # the gradient
            assert np.isnan(a[3]).all()
        np.testing.assert_allclose(np.delete(a, 3, 0), np.delete(wanted, 3, 0), rtol=2e-5, atol=1e-6)
    assert list(got.errors[:2]) == [0, 1] and np.isnan(got.values[3])
    values = native_softmax_ce(ops, tf.constant(z), bias, labels, with_gradient=False, **vars(spec))
    np.testing.assert_array_equal(values.values, got.values)
    assert values.gradient.shape == (0, LABELS)


def test_wrong_labels_are_an_error(ops: Any) -> None:
    options = {"with_gradient": True, **vars(TargetSpec())}
    with pytest.raises(tf.errors.InvalidArgumentError, match="frame 1 has the label 70, but there are 70 labels"):
        native_softmax_ce(ops, tf.zeros([2, LABELS]), tf.zeros([LABELS]), tf.constant([0, LABELS]), **options)
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit"):
        native_softmax_ce(ops, tf.zeros([2, LABELS]), tf.zeros([3]), tf.constant([0, 1]), **options)
