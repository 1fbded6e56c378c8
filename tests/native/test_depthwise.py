"""Native depthwise convolution: against the form in TensorFlow, with gradients of first and second order."""

import numpy as np
import pytest

from returnn_tf.native.fused.depthwise import depthwise_ops, native_depthwise
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.dense import convolution as module
from returnn_tf.ops.dense.convolution import convolution
from returnn_tf.util.lazy_tf import tf
from tests.native.derivatives import derivatives


@pytest.fixture(scope="module")
def ops():
    found = depthwise_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    "batch, frames, taps, dilation, padding",
    [
        (2, 70, 31, 1, "same"),  # more frames than are filtered at a time
        (2, 9, 4, 1, "same"),
        (3, 5, 31, 1, "same"),  # the filter is longer than the sequences
        (10, 12, 5, 3, "same"),
        (2, 12, 5, 2, "valid"),
        (1, 3, 4, 1, "valid"),  # nothing is left
        (2, 7, 3, 1, (5, 0)),
        (2, 7, 3, 1, (2, 0)),
        (1, 1, 1, 1, "same"),
    ],
)
def test_as_in_tensorflow(ops, batch, frames, taps, dilation, padding, with_bias):
    rng = np.random.RandomState(1)
    channels = 130  # not whole vectors
    shapes = [(batch, frames, channels), (taps, 1, channels), (channels,)][: 3 if with_bias else 2]
    arrays = [rng.normal(0.1, 0.5, shape).astype("float32") for shape in shapes]

    def conv(x, w, bias=None):
        options = {"groups": channels, "dilations": [dilation], "padding": [padding], "train": True}
        return convolution(x, w, bias=bias, **options)

    native = derivatives(conv, *arrays)
    with portable_ops():
        plain = derivatives(conv, *arrays)
    for a, b in zip(native, plain):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * (1 + (np.abs(b).max() if np.size(b) else 0)))


@pytest.mark.usefixtures("device")
def test_no_sequences(ops):
    x, w, bias = tf.zeros([0, 4, 5]), tf.ones([3, 5]), tf.ones([5])
    with tf.GradientTape() as tape:
        tape.watch([x, w, bias])
        y = native_depthwise(ops, x, w, bias, dilation=1, left=1, right=1)
    assert y.shape == [0, 4, 5]
    dx, dw, dbias = tape.gradient(y, [x, w, bias])
    assert dx.shape == [0, 4, 5] and not np.any(dw) and not np.any(dbias)


def kernel_of(x, w, **options):
    """Return the types of the ops that convolve in a graph."""

    @tf.function(autograph=False)
    def graph():
        return convolution(tf.zeros(x), tf.zeros(w), **options)

    return {op.type for op in graph.get_concrete_function().graph.get_operations()} & {"RtfDepthwise"}


def test_where_it_is_used(ops):
    x, w, options = [2, 9, 128], [3, 1, 128], {"groups": 128, "padding": ["same"]}
    assert kernel_of(x, w, train=True, **options)
    assert kernel_of(x, w, train=True, product_dtype="bfloat16", **options)  # in float32
    assert not kernel_of(x, w, **options)  # the graph may be exported
    assert not kernel_of(x, w, train=True, strides=[2], **options)
    assert not kernel_of(x, [3, 1, 256], train=True, **options)  # two filters for each channel
    assert not kernel_of(x, [3, 2, 128], train=True, groups=64, padding=["same"])
    assert not kernel_of([2, 9, 64], [3, 1, 64], train=True, groups=64, padding=["same"])


def test_only_where_it_pays(ops, monkeypatch):
    """The trial is asked with the channels; on a GPU it may say that TensorFlow's op is faster."""
    asked = []
    monkeypatch.setattr(module, "pays", lambda trial, width, dtype: asked.append((trial.name, width)))
    assert not kernel_of([2, 9, 128], [3, 1, 128], groups=128, padding=["same"], train=True)
    assert asked == [("depthwise convolution", 128)]


@pytest.mark.parametrize("groups", [128, 1])
def test_operands_of_few_digits(groups):
    rng = np.random.RandomState(1)
    x, w = (tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in ((2, 9, 128), (3, 128 // groups, 128)))
    options = {"groups": groups, "padding": ["same"]}
    exact, low = (convolution(x, w, product_dtype=dtype, **options) for dtype in (None, "bfloat16"))
    assert low.dtype == tf.bfloat16  # TensorFlow's op
    np.testing.assert_allclose(tf.cast(low, tf.float32), exact, atol=2e-2 * np.abs(exact).max())


@pytest.mark.parametrize(
    "frames, padding, expected", [(9, "same", 9), (9, "valid", 5), (3, "valid", 0), (9, (4, 3), 12)]
)
def test_static_frames(ops, frames, padding, expected):
    for size, known in ((frames, expected), (None, None)):

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, size, 128])])
        def graph(x):
            y = convolution(x, tf.ones([3, 1, 128]), groups=128, dilations=[2], padding=[padding], train=True)
            assert y.shape.as_list() == [None, known, 128]  # noqa: B023
            return y

        assert graph(tf.ones([2, frames, 128])).shape == [2, expected, 128]


@pytest.mark.usefixtures("device")
def test_nan_stays_in_reach(ops):
    x = np.zeros((2, 9, 3), "float32")
    x[1, 4, 2] = np.nan
    y = native_depthwise(ops, tf.constant(x), tf.ones([3, 3]), None, dilation=1, left=1, right=1).numpy()
    expected = np.zeros_like(x, bool)
    expected[1, 3:6, 2] = True
    np.testing.assert_array_equal(np.isnan(y), expected)


@pytest.mark.parametrize(
    "x, w, bias, text",
    [
        (
            [2, 3, 4],
            [3, 5],
            None,
            "x has to be .batch, frames, channels. and w .taps, channels., but they are .2,3,4. and .3,5.",
        ),
        ([2, 3, 4], [0, 4], None, "and .0,4."),
        ([2, 3, 4], [3, 4], [5], "the bias has to be .4., but is .5."),
    ],
)
def test_wrong_input(ops, x, w, bias, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        bias = None if bias is None else tf.zeros(bias)
        native_depthwise(ops, tf.zeros(x), tf.zeros(w), bias, dilation=1, left=1, right=1)
