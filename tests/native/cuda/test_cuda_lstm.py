"""What is the LSTM's own among its kernels for GPUs, in the emulator; the rest: test_cuda_recurrences."""

import numpy as np
import pytest

from tests.native.cuda import recurrences
from tests.native.cuda.build import build_emulated
from tests.native.cuda.recurrences import FLOAT, TF32, Kernels, check

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def lstm():
    return Kernels(build_emulated("lstm/lstm_cuda.cu"), "lstm")


def test_weights_in_shared_memory(lstm, monkeypatch):
    """More of them than the registers hold, in backward."""
    monkeypatch.setenv("RTF_EMULATION_SMS", "25")
    check(lstm, (2, 1, 390), TF32, dense=True)


@pytest.mark.long
@pytest.mark.parametrize("units", [528, 1170])
def test_weights_that_do_not_fit(lstm, monkeypatch, units):
    """In shared memory in forward, too; then more of them than the chip holds: the rest is streamed."""
    monkeypatch.setenv("RTF_EMULATION_SMS", "74")
    check(lstm, (2, 2, units), TF32)


def test_in_place(lstm):
    """Gates in the memory of z, and dz in that of the gates."""
    size, lengths = (3, 4, 7), recurrences.ragged(3, 4)
    results, expected, _ = recurrences.run(lstm, size, FLOAT, lengths, False)
    rng = np.random.RandomState(1)
    case = recurrences.lstm_case(lambda *s, scale=1.0: rng.normal(0, scale, s).astype("float32"), size, lengths, False)
    shape = recurrences.sequences(*size, lengths, False)
    h, c, _, c_last, h_last = (np.full(x.shape, np.nan, "float32") for x in case.outputs)
    z = case.inputs[0].copy()
    lstm.call_on(shape, FLOAT, False, [z, *case.inputs[1:], h, c, z, c_last, h_last])
    np.testing.assert_array_equal(z, results[2])
    gates, dc0, dh0 = results[2].copy(), *(np.full((4, 7), np.nan, "float32") for _ in range(2))
    inputs = case.for_backward(results)
    lstm.call_on(shape, FLOAT, True, [*inputs[:3], gates, *inputs[4:], gates, dc0, dh0])
    for result, value in zip((gates, dc0, dh0), results[5:]):
        np.testing.assert_array_equal(result, value)


def test_nan_in_weights_is_seen(lstm):
    size, lengths = (2, 2, 20), np.array([2, 2], "int32")
    z, w_re, state = np.ones((2, 2, 80)), np.ones((20, 80)), np.ones((2, 20))
    w_re[3, 5] = np.nan
    shape = recurrences.sequences(*size, lengths, False)
    for numbers in range(4):
        h = lstm.call(shape, numbers, False, [z, w_re, state, state], [size, size, z.shape, state.shape, state.shape])[
            0
        ]
        assert np.isnan(h).any()


@pytest.mark.parametrize("value", [1e4, -1e4, np.inf, -np.inf])
def test_large_input_saturates(lstm, value):
    z, w_re, state = np.full((2, 2, 20), value), np.ones((5, 20)), np.ones((2, 5))
    shape = recurrences.sequences(2, 2, 5, None, False)
    for result in lstm.call(shape, FLOAT, False, [z, w_re, state, state], [(2, 2, 5)] * 2 + [z.shape] + [(2, 5)] * 2):
        assert np.isfinite(result).all()


BAD = [
    ((2, 2, 0), None, FLOAT, "number of units has to be"),
    ((2, 2, 70000), None, FLOAT, "number of units has to be"),
    ((-1, 2, 3), None, FLOAT, "number of frames"),
    ((2, -1, 3), None, FLOAT, "number of sequences"),
    ((2, 2, 3), [1, 3], FLOAT, "longer than the array"),
    ((2, 2, 3), [-1, 2], FLOAT, "negative length"),
    ((2, 2, 3), None, 4, "none of RtfNumbers"),
]


@pytest.mark.parametrize("size, lengths, numbers, text", BAD)
def test_wrong_calls(lstm, size, lengths, numbers, text):
    given = None if lengths is None else np.array(lengths, "int32")
    shape, nothing = recurrences.sequences(*size, given, False), np.zeros(1, "float32")
    for backward, count in ((False, 9), (True, 10)):
        with pytest.raises(ValueError, match=text):
            lstm.launch(shape, numbers, backward, [nothing.ctypes.data] * count, 0)
        with pytest.raises(ValueError, match=text):
            lstm.workspace_bytes(shape, numbers, backward)
