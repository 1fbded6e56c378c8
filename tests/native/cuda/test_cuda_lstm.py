"""The LSTM's kernels for GPUs, in the emulator: against float64, with gradients, on ragged batches."""

import re

import numpy
import pytest

from tests.native.cuda import recurrences
from tests.native.cuda.build import SANITIZERS, build_emulated, compile_for_gpu, run_sanitized
from tests.native.cuda.recurrences import BFLOAT16, FLOAT, FLOAT16, TF32, Kernels, check

# time, batch, units; beside the tiles of the kernels (8 and 16 sequences, 8 and 16 units) and on them
SIZES = [(1, 1, 1), (4, 3, 5), (5, 9, 37), (3, 17, 16), (3, 8, 33), (2, 16, 64)]

SEVERAL_TILES = (3, 20, 70)


@pytest.fixture(scope="module")
def lstm():
    return Kernels(build_emulated("lstm/lstm_cuda.cu"), "lstm")


@pytest.mark.parametrize("numbers", [FLOAT, TF32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(lstm, size, numbers):
    check(lstm, size, numbers, reverse=size[1] % 2 == 0)


@pytest.mark.parametrize("multiprocessors", [1, 5, 9, 20])
@pytest.mark.parametrize("seed", [1, 2])
def test_any_number_of_multiprocessors(lstm, monkeypatch, multiprocessors, seed):
    """One: weights from L2; 5: wide tiles; 9: narrow ones; 20: several groups. All give the same bits."""
    expected = check(lstm, SEVERAL_TILES, seed=7)
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for result, value in zip(check(lstm, SEVERAL_TILES, seed=7), expected):
        numpy.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("multiprocessors", [1, 5])
@pytest.mark.parametrize("seed", range(1, 7))
def test_slow_threads(lstm, monkeypatch, multiprocessors, seed):
    """Nothing is overwritten that some thread has still to read: by the next step, or the next pass over sequences."""
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for size in (SEVERAL_TILES, (3, 60, 20)):
        check(lstm, size)


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (0, 0, 4)], ids=str)
def test_empty(lstm, size):
    check(lstm, size)


def test_only_empty_sequences(lstm):
    results, expected, _ = recurrences.run(lstm, (3, 4, 5), FLOAT, numpy.zeros(4, "int32"), False)
    for result, value in zip(results, expected):
        numpy.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("reverse", [False, True])
def test_dense(lstm, reverse):
    """Without lengths as with lengths that are all the same."""
    whole = numpy.full(5, 4, "int32")
    without, _, _ = recurrences.run(lstm, (4, 5, 9), FLOAT, None, reverse)
    with_lengths, _, _ = recurrences.run(lstm, (4, 5, 9), FLOAT, whole, reverse)
    for result, value in zip(without, with_lengths):
        numpy.testing.assert_array_equal(result, value)
    check(lstm, (4, 5, 9), dense=True, reverse=reverse)


def test_more_sequences_than_a_launch_takes(lstm):
    check(lstm, (2, 270, 3))


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
    rng = numpy.random.RandomState(1)
    case = recurrences.lstm_case(lambda *s, scale=1.0: rng.normal(0, scale, s).astype("float32"), size, lengths, False)
    shape = recurrences.sequences(*size, lengths, False)
    h, c, _, c_last, h_last = (numpy.full(x.shape, numpy.nan, "float32") for x in case.outputs)
    z = case.inputs[0].copy()
    lstm.call_on(shape, FLOAT, False, [z, *case.inputs[1:], h, c, z, c_last, h_last])
    numpy.testing.assert_array_equal(z, results[2])
    gates, dc0, dh0 = results[2].copy(), *(numpy.full((4, 7), numpy.nan, "float32") for _ in range(2))
    inputs = case.for_backward(results)
    lstm.call_on(shape, FLOAT, True, [*inputs[:3], gates, *inputs[4:], gates, dc0, dh0])
    for result, value in zip((gates, dc0, dh0), results[5:]):
        numpy.testing.assert_array_equal(result, value)


def test_nan_in_weights_is_seen(lstm):
    size, lengths = (2, 2, 20), numpy.array([2, 2], "int32")
    z, w_re, state = numpy.ones((2, 2, 80)), numpy.ones((20, 80)), numpy.ones((2, 20))
    w_re[3, 5] = numpy.nan
    shape = recurrences.sequences(*size, lengths, False)
    for numbers in range(4):
        h = lstm.call(shape, numbers, False, [z, w_re, state, state], [size, size, z.shape, state.shape, state.shape])[
            0
        ]
        assert numpy.isnan(h).any()


@pytest.mark.parametrize("value", [1e4, -1e4, numpy.inf, -numpy.inf])
def test_large_input_saturates(lstm, value):
    z, w_re, state = numpy.full((2, 2, 20), value), numpy.ones((5, 20)), numpy.ones((2, 5))
    shape = recurrences.sequences(2, 2, 5, None, False)
    for result in lstm.call(shape, FLOAT, False, [z, w_re, state, state], [(2, 2, 5)] * 2 + [z.shape] + [(2, 5)] * 2):
        assert numpy.isfinite(result).all()


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
    given = None if lengths is None else numpy.array(lengths, "int32")
    shape, nothing = recurrences.sequences(*size, given, False), numpy.zeros(1, "float32")
    for backward, count in ((False, 9), (True, 10)):
        with pytest.raises(ValueError, match=text):
            lstm.launch(shape, numbers, backward, [nothing.ctypes.data] * count, 0)
        with pytest.raises(ValueError, match=text):
            lstm.workspace_bytes(shape, numbers, backward)


def test_what_cuda_says_is_passed_on(lstm, monkeypatch):
    monkeypatch.setenv("RTF_EMULATION_SMS", "0")
    for backward in (False, True):
        with pytest.raises(ValueError, match="no CUDA-capable device is detected"):
            lstm.workspace_bytes(recurrences.sequences(2, 2, 3, None, False), FLOAT, backward)


@pytest.mark.long
@pytest.mark.parametrize("arch, spilled", [("sm_80", 64), ("sm_90", 0)])
def test_nvcc(arch, spilled):
    """The time loop keeps its weights in registers: nothing to speak of may be spilled."""
    report = compile_for_gpu("lstm/lstm_cuda.cu", arch)
    assert "all_steps" in report
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", report))) <= spilled


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers(sanitizer):
    """No access out of bounds, no race."""
    source = "../tests/native/cuda/sanitized_recurrences.cu"
    run_sanitized(source, sanitizer=sanitizer, timeout=900)
