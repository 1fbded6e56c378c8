"""The GRU's kernels for GPUs, in the emulator: against float64, with gradients, on ragged batches."""

import re

import numpy
import pytest

from tests.native.cuda import recurrences
from tests.native.cuda.build import SANITIZERS, build_emulated, compile_for_gpu, run_sanitized
from tests.native.cuda.recurrences import BFLOAT16, FLOAT, FLOAT16, TF32, Kernels, check

SIZES = [(1, 1, 1), (4, 3, 5), (5, 9, 37), (3, 17, 16), (3, 8, 33)]

SEVERAL_TILES = (3, 20, 70)


@pytest.fixture(scope="module")
def gru():
    return Kernels(build_emulated("gru/gru_cuda.cu"), "gru")


@pytest.mark.parametrize("numbers", [FLOAT, TF32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(gru, size, numbers):
    check(gru, size, numbers, reverse=size[1] % 2 == 0)


@pytest.mark.parametrize("multiprocessors", [1, 5, 15])
@pytest.mark.parametrize("seed", [1, 2])
def test_any_number_of_multiprocessors(gru, monkeypatch, multiprocessors, seed):
    """One: weights from L2; 5: one group; 15: several groups. All give the same bits."""
    expected = check(gru, SEVERAL_TILES, seed=7)
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for result, value in zip(check(gru, SEVERAL_TILES, seed=7), expected):
        numpy.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("multiprocessors", [1, 5])
@pytest.mark.parametrize("seed", range(1, 7))
def test_slow_threads(gru, monkeypatch, multiprocessors, seed):
    """Nothing is overwritten that some thread has still to read: by the next step, or the next pass over sequences."""
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for size in (SEVERAL_TILES, (3, 60, 20)):
        check(gru, size)


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (0, 0, 4)], ids=str)
def test_empty(gru, size):
    check(gru, size)


@pytest.mark.parametrize("reverse", [False, True])
def test_dense(gru, reverse):
    check(gru, (4, 5, 9), dense=True, reverse=reverse)


def test_more_sequences_than_a_launch_takes(gru):
    check(gru, (2, 270, 3))


def test_in_place(gru):
    """Gates in the memory of z, and dz in that of the gates."""
    size, lengths = (3, 4, 7), recurrences.ragged(3, 4)
    results, _, _ = recurrences.run(gru, size, FLOAT, lengths, False)
    rng = numpy.random.RandomState(1)
    case = recurrences.gru_case(lambda *s, scale=1.0: rng.normal(0, scale, s).astype("float32"), size, lengths, False)
    shape = recurrences.sequences(*size, lengths, False)
    h, _, h_last = (numpy.full(x.shape, numpy.nan, "float32") for x in case.outputs)
    z = case.inputs[0].copy()
    gru.call_on(shape, FLOAT, False, [z, *case.inputs[1:], h, z, h_last])
    numpy.testing.assert_array_equal(z, results[1])
    gates, reset_h, dh0 = (
        results[1].copy(),
        numpy.full(size, numpy.nan, "float32"),
        numpy.full((4, 7), numpy.nan, "float32"),
    )
    inputs = case.for_backward(results)
    gru.call_on(shape, FLOAT, True, [*inputs[:4], gates, *inputs[5:], gates, reset_h, dh0])
    for result, value in zip((gates, reset_h, dh0), results[3:]):
        numpy.testing.assert_array_equal(result, value)


def test_nan_in_weights_is_seen(gru):
    z, w_gates, w_candidate, h0 = (
        numpy.ones((2, 2, 60)),
        numpy.ones((20, 40)),
        numpy.ones((20, 20)),
        numpy.ones((2, 20)),
    )
    w_candidate[3, 5] = numpy.nan
    shape = recurrences.sequences(2, 2, 20, None, False)
    h = gru.call(shape, FLOAT, False, [z, w_gates, w_candidate, h0], [(2, 2, 20), z.shape, h0.shape])[0]
    assert numpy.isnan(h).any()


def test_wrong_calls(gru):
    shape, nothing = recurrences.sequences(2, 2, 0, None, False), numpy.zeros(1, "float32")
    for backward, count in ((False, 7), (True, 10)):
        with pytest.raises(ValueError, match="number of units has to be"):
            gru.launch(shape, FLOAT, backward, [nothing.ctypes.data] * count, 0)
        with pytest.raises(ValueError, match="number of units has to be"):
            gru.workspace_bytes(shape, FLOAT, backward)


def test_what_cuda_says_is_passed_on(gru, monkeypatch):
    monkeypatch.setenv("RTF_EMULATION_SMS", "0")
    for backward in (False, True):
        with pytest.raises(ValueError, match="no CUDA-capable device is detected"):
            gru.workspace_bytes(recurrences.sequences(2, 2, 3, None, False), FLOAT, backward)


@pytest.mark.long
@pytest.mark.parametrize("arch, spilled", [("sm_80", 32), ("sm_90", 0)])
def test_nvcc(arch, spilled):
    """The time loop keeps its weights in registers: nothing to speak of may be spilled."""
    report = compile_for_gpu("gru/gru_cuda.cu", arch)
    assert "all_steps" in report
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", report))) <= spilled


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers(sanitizer):
    """No access out of bounds, no race."""
    source = "../tests/native/cuda/sanitized_recurrences.cu"
    run_sanitized(source, "-DRTF_GRU=1", sanitizer=sanitizer, timeout=900)
