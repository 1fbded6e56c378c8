"""Native layer normalisation: against the form in TensorFlow, with gradients of first and second order."""

import numpy as np
import pytest

from returnn_tf.native.fused.norm import native_norm, norm_ops
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops import normalize
from returnn_tf.ops.normalize import layer_norm
from returnn_tf.util.lazy_tf import tf
from tests.native.derivatives import derivatives


@pytest.fixture(scope="module")
def ops():
    found = norm_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("with_params", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, 130), (200, 128), (256,), (0, 128)], ids=str)
def test_as_in_tensorflow(ops, shape, with_params):
    rng = np.random.RandomState(1)
    arrays = [rng.normal(0.3, 1, s).astype("float32") for s in (shape, shape[-1:], shape[-1:])]
    if not with_params:
        arrays = arrays[:1]

    def norm(x, scale=None, bias=None):
        return layer_norm(x, scale, bias, 1e-3)

    native = derivatives(norm, *arrays)
    with portable_ops():
        plain = derivatives(norm, *arrays)
    for a, b in zip(native, plain):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * (1 + (np.abs(b).max() if np.size(b) else 0)))
    np.testing.assert_allclose(native[0], plain[0], rtol=1e-5, atol=1e-5)


def test_only_where_it_pays(ops, monkeypatch):
    """The trial is asked with the width; on a GPU it may say that TensorFlow's ops are faster."""
    asked = []
    monkeypatch.setattr(normalize, "pays", lambda trial, width, dtype: asked.append((trial.name, width)))
    function = tf.function(lambda x: normalize.layer_norm(x, None, None, 1e-3), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None, 130])).graph
    assert asked == [("layer norm", 130)] and "RtfNorm" not in {op.type for op in graph.get_operations()}


@pytest.mark.usefixtures("device")
def test_nan_stays_in_its_row(ops):
    x = np.zeros((3, 5), "float32")
    x[1, 2] = np.nan
    y = native_norm(ops, tf.constant(x), None, None, 1e-6).numpy()
    assert np.isnan(y[1]).all() and not y[[0, 2]].any()


def test_wrong_input(ops):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        native_norm(ops, tf.zeros([2, 3]), tf.ones([2]), None, 1e-6)
    assert "scale has to be [3], but is [2]" in str(info.value)
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        native_norm(ops, tf.zeros([2, 0]), None, None, 1e-6)
    assert "has to have features" in str(info.value)
