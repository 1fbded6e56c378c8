"""The sLSTM on an emulated GPU: as the kernels for the CPU, on all cases of their tests."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated, compile_for_gpu
from tests.native.cuda.calls import pointer, pointers
from tests.native.cuda.memory import HostMemory
from tests.native.cuda.recurrences import BFLOAT16, FLOAT, TF32, Array, ragged, sequences
from tests.native.cuda.slstm_calls import PARTS, SLstm
from tests.native.scan_cases import SLSTM_CASES, SLSTM_FRAMES, SLSTM_LENGTHS, gates_far_from_zero
from tests.tiers import usual

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module", name="gpu")
def find_gpu() -> SLstm:
    return SLstm(build_emulated("slstm/slstm_cuda.cu"), True)


@pytest.fixture(scope="module", name="cpu")
def find_cpu() -> SLstm:
    return SLstm(build_emulated("slstm/slstm_cpu.cc", "-O2"), False)


def compare(gpu: SLstm, cpu: SLstm, *args: Any, tolerance: float = 2e-5, **options: Any) -> list[Array]:
    results, expected = gpu.run(*args, **options), cpu.run(*args, **options)
    for index, (result, value) in enumerate(zip(results, expected)):
        assert np.isfinite(value).all()
        scale = max(1, np.abs(value).max(initial=0))
        np.testing.assert_allclose(result / scale, value / scale, atol=tolerance, err_msg="result %d" % index)
    return results


@pytest.mark.parametrize("n, opts, direction, few", SLSTM_CASES, ids=str)
def test_as_on_the_cpu(gpu: SLstm, cpu: SLstm, n: int, opts: dict[str, Any], direction: int, few: bool) -> None:
    lengths = None if few else np.array(SLSTM_LENGTHS, "int32")
    size = (SLSTM_FRAMES, 1 if few else len(SLSTM_LENGTHS), n // opts.get("num_heads", 1))
    compare(gpu, cpu, size, lengths, reverse=direction < 0, exp_forget=opts.get("forget_gate") == "exp")


def test_gates_far_from_zero(gpu: SLstm) -> None:
    f = gates_far_from_zero()
    z = np.zeros([1, len(f), 4], "float32")
    z[0, :, 1], z[..., 0] = f, -1000.0
    zeros, empty = np.zeros([len(f), 1], "float32"), HostMemory().empty
    initial, r = [zeros, zeros + 1, zeros, zeros], np.zeros([1, 4], "float32")
    states, last = ([empty((1, len(f), 1)[skip:]) for _ in range(PARTS)] for skip in (0, 1))
    given = [pointer(z), pointer(r), pointers(initial), pointers(states), pointer(z), pointers(last)]
    gpu.call("forward", sequences(1, len(f), 1, None, False), FLOAT, False, given)
    np.testing.assert_allclose(last[2][:, 0], -np.logaddexp(0, -f.astype("float64")), rtol=3e-6, atol=2e-7)


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 17, 16), (2, 9, 33)], ids=str)
def test_sizes(gpu: SLstm, cpu: SLstm, size: tuple[int, int, int]) -> None:
    compare(gpu, cpu, size, ragged(*size[:2]))


@pytest.mark.parametrize("multiprocessors", [1, 5, 9])
@pytest.mark.parametrize("seed", usual([1, 2, 3], [2]))
def test_any_number_of_multiprocessors(
    gpu: SLstm, cpu: SLstm, monkeypatch: pytest.MonkeyPatch, multiprocessors: int, seed: int
) -> None:
    """One: weights from L2; few: wide tiles; more: narrow ones, then several groups. What a step leaves for the next
    one is there."""
    monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    compare(gpu, cpu, (3, 20, 70), ragged(3, 20), scale=0.2)


def test_tf32(gpu: SLstm, cpu: SLstm) -> None:
    """h, and its gradient for z: which gate determined a stabiliser is decided by rounding."""
    size, lengths = (3, 5, 20), ragged(3, 5)
    results, expected = (side.run(size, lengths, TF32, scale=0.2) for side in (gpu, cpu))
    np.testing.assert_allclose(results[3], expected[3], atol=1e-2)
    assert np.abs(results[3] - expected[3]).max() > 1e-6


def test_in_place(gpu: SLstm) -> None:
    """Gates in the memory of z, and dz in that of the gates."""
    size, lengths = (3, 4, 7), ragged(3, 4)
    for result, value in zip(gpu.run(size, lengths, in_place=True), gpu.run(size, lengths)):
        np.testing.assert_array_equal(result, value)


def test_nan_in_weights_is_seen(gpu: SLstm) -> None:
    z, r, state, empty = np.ones((2, 2, 80)), np.ones((20, 80)), np.ones((2, 20)), HostMemory().empty
    r[3, 5] = np.nan
    z, r, state = (x.astype("float32") for x in (z, r, state))
    states, last = ([empty(shape) for _ in range(PARTS)] for shape in ((2, 2, 20), (2, 20)))
    given = [pointer(z), pointer(r), pointers([state] * PARTS), pointers(states), pointer(z), pointers(last)]
    for numbers in (FLOAT, TF32):
        gpu.call("forward", sequences(2, 2, 20, None, False), numbers, False, given)
        assert np.isnan(states[3]).any()


@pytest.mark.parametrize("size, lengths, numbers, text", [
    ((2, 2, 0), None, FLOAT, "number of units has to be"),
    ((2, 2, 3), [1, 3], FLOAT, "longer than the array"),
    ((2, 2, 3), None, BFLOAT16, "kernels for float only"),
])  # fmt: skip
def test_wrong_calls(gpu: SLstm, size: tuple[int, int, int], lengths: Any, numbers: int, text: str) -> None:
    given = None if lengths is None else np.array(lengths, "int32")
    for backward in (False, True):
        with pytest.raises(ValueError, match=text):
            gpu.memory(sequences(*size, given, False), numbers, backward)


@pytest.mark.long
@pytest.mark.parametrize("arch, spilled", [("sm_80", 24), ("sm_90", 0), ("sm_100", 0), ("sm_120", 0)])
def test_nvcc(arch: str, spilled: int) -> None:
    """Spilled are some numbers of the kernel with weights from L2, where registers are few."""
    report = compile_for_gpu("slstm/slstm_cuda.cu", arch)
    assert "all_steps" in report and max(map(int, re.findall(r"(\d+) bytes spill stores", report))) <= spilled
