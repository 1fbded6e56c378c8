"""What holds for the kernels of LSTM and GRU alike, in the emulator: against float64, in any order of threads."""

import re

import numpy as np
import pytest

from tests.native.cuda import recurrences
from tests.native.cuda.build import SANITIZERS, build_emulated, compile_for_gpu, run_sanitized
from tests.native.cuda.recurrences import BFLOAT16, FLOAT, FLOAT16, TF32, Kernels, check
from tests.tiers import usual

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

# time, batch, units; beside the tiles of the kernels (8 and 16 sequences, 8 and 16 units) and on them
SIZES = [(1, 1, 1), (4, 3, 5), (5, 9, 37), (3, 17, 16), (3, 8, 33), (2, 16, 64)]

SEVERAL_TILES = (3, 20, 70)


@pytest.fixture(scope="module", params=["lstm", "gru"])
def kernels(request):
    return Kernels(build_emulated(f"{request.param}/{request.param}_cuda.cu"), request.param)


@pytest.mark.parametrize("numbers", [FLOAT, TF32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(kernels, size, numbers):
    check(kernels, size, numbers, reverse=size[1] % 2 == 0)


@pytest.fixture(scope="module")
def expected(kernels):
    """Return the results of several tiles on a chip of the usual size."""
    return check(kernels, SEVERAL_TILES, seed=7)


@pytest.mark.parametrize("multiprocessors", [1, 5, 9, 15, 20])
@pytest.mark.parametrize("seed", usual([1, 2], [1]))
def test_any_number_of_multiprocessors(kernels, expected, monkeypatch, multiprocessors, seed):
    """One: weights from L2; few: wide tiles; more: narrow ones, then several groups. All give the same bits."""
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for result, value in zip(check(kernels, SEVERAL_TILES, seed=7), expected):
        np.testing.assert_array_equal(result, value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("multiprocessors", [1, 5])
@pytest.mark.parametrize("seed", range(1, 7))
def test_slow_threads(kernels, monkeypatch, multiprocessors, seed):
    """Nothing is overwritten that some thread has still to read: by the next step, or the next pass over sequences."""
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for size in (SEVERAL_TILES, (3, 60, 20)):
        check(kernels, size)


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (0, 0, 4)], ids=str)
def test_empty(kernels, size):
    check(kernels, size)


def test_more_sequences_than_a_launch_takes(kernels):
    check(kernels, (2, 270, 3))


def test_only_empty_sequences(kernels):
    results, expected, _ = recurrences.run(kernels, (3, 4, 5), FLOAT, np.zeros(4, "int32"), False)
    for result, value in zip(results, expected):
        np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("reverse", [False, True])
def test_dense(kernels, reverse):
    """Without lengths as with lengths that are all the same."""
    whole = np.full(5, 4, "int32")
    without, _, _ = recurrences.run(kernels, (4, 5, 9), FLOAT, None, reverse)
    with_lengths, _, _ = recurrences.run(kernels, (4, 5, 9), FLOAT, whole, reverse)
    for result, value in zip(without, with_lengths):
        np.testing.assert_array_equal(result, value)
    check(kernels, (4, 5, 9), dense=True, reverse=reverse)


def test_what_cuda_says_is_passed_on(kernels, monkeypatch):
    monkeypatch.setenv("RTF_EMULATION_SMS", "0")
    for backward in (False, True):
        with pytest.raises(ValueError, match="no CUDA-capable device is detected"):
            kernels.workspace_bytes(recurrences.sequences(2, 2, 3, None, False), FLOAT, backward)


@pytest.mark.long
@pytest.mark.parametrize(
    "unit, arch, spilled", [("lstm", "sm_80", 24), ("lstm", "sm_90", 0), ("gru", "sm_80", 24), ("gru", "sm_90", 0)]
)
def test_nvcc(unit, arch, spilled):
    """The time loop keeps its weights in registers: nothing to speak of may be spilled."""
    report = compile_for_gpu(f"{unit}/{unit}_cuda.cu", arch)
    assert "all_steps" in report
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", report))) <= spilled


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["-DRTF_GRU=1"]], ids=["lstm", "gru"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers(sanitizer, flags):
    """No access out of bounds, no race."""
    run_sanitized("../tests/native/cuda/sanitized_recurrences.cu", *flags, sanitizer=sanitizer)
