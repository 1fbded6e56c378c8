"""What is the GRU's own among its kernels for GPUs, in the emulator; the rest: test_cuda_recurrences."""

import numpy as np
import pytest

from tests.native.cuda import recurrences
from tests.native.cuda.build import build_emulated
from tests.native.cuda.recurrences import FLOAT, Kernels

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def gru():
    return Kernels(build_emulated("gru/gru_cuda.cu"), "gru")


def test_in_place(gru):
    """Gates in the memory of z, and dz in that of the gates."""
    size, lengths = (3, 4, 7), recurrences.ragged(3, 4)
    results, _, _ = recurrences.run(gru, size, FLOAT, lengths, False)
    rng = np.random.RandomState(1)
    case = recurrences.gru_case(lambda *s, scale=1.0: rng.normal(0, scale, s).astype("float32"), size, lengths, False)
    shape = recurrences.sequences(*size, lengths, False)
    h, _, h_last = (np.full(x.shape, np.nan, "float32") for x in case.outputs)
    z = case.inputs[0].copy()
    gru.call_on(shape, FLOAT, False, [z, *case.inputs[1:], h, z, h_last])
    np.testing.assert_array_equal(z, results[1])
    gates, reset_h, dh0 = (
        results[1].copy(),
        np.full(size, np.nan, "float32"),
        np.full((4, 7), np.nan, "float32"),
    )
    inputs = case.for_backward(results)
    gru.call_on(shape, FLOAT, True, [*inputs[:4], gates, *inputs[5:], gates, reset_h, dh0])
    for result, value in zip((gates, reset_h, dh0), results[3:]):
        np.testing.assert_array_equal(result, value)


def test_nan_in_weights_is_seen(gru):
    z, w_gates, w_candidate, h0 = (
        np.ones((2, 2, 60)),
        np.ones((20, 40)),
        np.ones((20, 20)),
        np.ones((2, 20)),
    )
    w_candidate[3, 5] = np.nan
    shape = recurrences.sequences(2, 2, 20, None, False)
    h = gru.call(shape, FLOAT, False, [z, w_gates, w_candidate, h0], [(2, 2, 20), z.shape, h0.shape])[0]
    assert np.isnan(h).any()


def test_wrong_calls(gru):
    shape, nothing = recurrences.sequences(2, 2, 0, None, False), np.zeros(1, "float32")
    for backward, count in ((False, 7), (True, 10)):
        with pytest.raises(ValueError, match="number of units has to be"):
            gru.launch(shape, FLOAT, backward, [nothing.ctypes.data] * count, 0)
        with pytest.raises(ValueError, match="number of units has to be"):
            gru.workspace_bytes(shape, FLOAT, backward)
