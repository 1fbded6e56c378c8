"""The native MDLSTM as an op on a GPU; the kernels themselves run in an emulator too, see ``tests/native/cuda``."""

import functools

import numpy as np
import pytest

from returnn_tf.native import mdlstm_ops, native_mdlstm
from returnn_tf.util.lazy_tf import tf
from tests.native import mdlstm_cases as cases

pytestmark = pytest.mark.gpu


@pytest.fixture
def form():
    """Yield with float precision in TensorFlow's own products."""
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no GPU")
    ops = mdlstm_ops()
    assert ops is not None, "the native MDLSTM has to compile where there is a GPU"
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    with tf.device("GPU:0"):
        yield functools.partial(native_mdlstm, ops)
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("size", cases.SIZES, ids=str)
def test_values_and_gradients(form, size, stable):
    cases.check_values_and_gradients(form, size, cases.FLIPS, stable)


def test_more_directions_than_a_launch_takes(form):
    cases.check_values_and_gradients(form, (3, 4, 5, 6), [*cases.FLIPS, *cases.FLIPS[:2]], True)


def test_padding_does_not_leak(form):
    cases.check_padding(form)


@pytest.mark.parametrize("size", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 0, 0)], ids=str)
def test_empty(form, size):
    cases.check_empty(form, size)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.03), ("float16", 0.004)])
def test_other_types(form, dtype, tolerance):
    arrays, heights, widths = cases.draw(3, 5, 6, 20, count=4)
    got = cases.run(form, [tf.cast(x, dtype) for x in arrays], heights, widths, cases.FLIPS)
    for h, expected in zip(got, cases.expected(arrays, heights, widths, cases.FLIPS)):
        assert h.dtype == dtype and "GPU" in h.device
        np.testing.assert_allclose(tf.cast(h, tf.float32), expected, atol=tolerance)
