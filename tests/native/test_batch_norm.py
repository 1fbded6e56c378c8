"""Native batch normalisation: against the form in TensorFlow, with gradients of first and second order."""

import numpy as np
import pytest

from returnn_tf.native.fused.batch_norm import batch_norm_ops, native_batch_norm
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops import normalize
from returnn_tf.ops.after_product import bias_and_activation
from returnn_tf.ops.normalize import batch_norm
from returnn_tf.util.lazy_tf import tf
from tests.native.derivatives import derivatives

RNG = np.random.RandomState(1)


@pytest.fixture(scope="module")
def ops():
    found = batch_norm_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


def check(mask, shape, function, *, with_params=True):
    """Compare both forms, with an activation behind them."""
    arrays = [RNG.normal(0.3, 1, s).astype("float32") for s in (shape, shape[-1:], shape[-1:])]
    if not with_params:
        arrays = arrays[:1]

    @tf.function(autograph=False)  # activations are joined to what is before in graphs only
    def norm(x, scale=None, shift=None):
        return bias_and_activation(batch_norm(x, mask, scale, shift, 0.1)[0], None, function)

    native = derivatives(norm, *arrays)
    with portable_ops():
        plain = derivatives(norm.python_function, *arrays)
    for a, b in zip(native, plain):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * (1 + np.abs(b).max()))
    np.testing.assert_allclose(native[0], plain[0], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("function", [None, "relu", "swish", "gelu", "tanh", "sigmoid"])
def test_functions(ops, function):
    check(tf.sequence_mask([40, 7, 0], 40)[:, :, None], (3, 40, 130), function)


MASKS = {
    "all": lambda: ((3, 40, 130), None),
    "time": lambda: ((40, 3, 130), tf.sequence_mask(9, 40)[:, None, None]),  # one length for all
    "one row": lambda: ((2, 130), tf.constant([[True], [False]])),  # the variance is 0
    "images": lambda: ((2, 3, 5, 128), tf.sequence_mask([1, 3], 3)[:, :, None, None]),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", list(MASKS))
def test_masks(ops, name):
    shape, mask = MASKS[name]()
    check(mask, shape, "swish")


@pytest.mark.usefixtures("device")
def test_without_parameters(ops):
    check(None, (3, 40, 130), "swish", with_params=False)


@pytest.mark.usefixtures("device")
def test_moments_far_from_zero(ops):
    x = (1000 + RNG.normal(0, 1, (500, 3))).astype("float32")
    mask = RNG.randint(0, 2, 500) > 0
    y, mean, variance = native_batch_norm(ops, tf.constant(x), tf.constant(mask), None, None, 0.0)
    valid = x[mask].astype("float64")
    np.testing.assert_allclose(mean, valid.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, valid.var(0), rtol=1e-4)
    np.testing.assert_allclose(y, (x - valid.mean(0)) / valid.std(0), atol=1e-3)


@pytest.mark.usefixtures("device")
def test_no_valid_rows(ops):
    x = tf.constant(RNG.normal(0, 1, (4, 3)), tf.float32)
    for rows in (x, x[:0]):
        y, mean, variance = native_batch_norm(ops, rows, tf.zeros(len(rows), tf.bool), None, None, 1.0)
        np.testing.assert_array_equal(y, rows)
        assert not np.any(mean) and not np.any(variance)


def test_one_op_with_the_activation(ops):
    @tf.function(autograph=False)
    def graph(x):
        y, mean, variance = batch_norm(x, None, None, None, 0.1)
        return bias_and_activation(bias_and_activation(y, None, "swish"), None, "relu"), mean, variance

    made = graph.get_concrete_function(tf.zeros([4, 128])).graph.get_operations()
    assert [op.type for op in made if op.type == "RtfBatchMoments"] == ["RtfBatchMoments"]
    functions = [op.get_attr("function") for op in made if op.type in ("RtfBatchNorm", "RtfActivate")]
    assert functions == [b"identity", b"swish", b"relu"]  # nothing reads the first one


def test_only_where_it_pays(ops, monkeypatch):
    """The trial is asked with the width; on a GPU it may say that TensorFlow's ops are faster."""
    asked = []
    monkeypatch.setattr(normalize, "pays", lambda trial, width, dtype: asked.append((trial.name, width)))
    function = tf.function(lambda x: batch_norm(x, None, None, None, 1e-3), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None, 130])).graph
    assert asked == [("batch normalisation", 130)]
    assert "RtfBatchNorm" not in {op.type for op in graph.get_operations()}


@pytest.mark.parametrize(
    "mask, scale, text",
    [([3], None, r"the mask is \[3\], but the input has 2 rows"), (None, [2], r"scale has to be \[3\], but is \[2\]")],
)
def test_wrong_input(ops, mask, scale, text):
    mask, scale = (None if s is None else tf.ones(s, t) for s, t in ((mask, tf.bool), (scale, tf.float32)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        native_batch_norm(ops, tf.zeros([2, 3]), mask, scale, None, 1e-3)
