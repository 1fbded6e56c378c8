"""Updates of all parameters and the norm of all gradients on an emulated GPU: what the kernels for the CPU compute."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import IN_STREAM, assert_same_bits, empty, pointer
from tests.native.cuda.update_calls import MANY, NUMBERS, RULES, updated

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def gpu():
    return build_emulated("update/update_cuda.cu")


@pytest.fixture(scope="module")
def cpu():
    return build_emulated("update/update_cpu.cc", "-O2")


@pytest.mark.parametrize("flags", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_as_on_the_cpu(gpu, cpu, rule, flags):
    """Flags: Nesterov momentum, weight decay, what counts, are among the numbers."""
    numbers = NUMBERS if flags else [0.1, 0.5, 0.0, 0.0 if rule == "radam" else 0.9, 0.99, 1e-3, 0.0, 0.0]
    if rule == "rmsprop_centered":
        numbers = [*numbers[:3], 10.0, *numbers[4:]]
    for one, other in zip(updated(gpu, rule, numbers), updated(cpu, rule, numbers)):
        assert np.isfinite(other).all()
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["adam", "lamb", "adafactor"])
def test_many_parameters(gpu, cpu, rule):
    """More than there are in a launch."""
    for one, other in zip(*(updated(library, rule, NUMBERS, MANY) for library in (gpu, cpu))):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["lamb", "scaled_adam", "adafactor"])
def test_sums_have_the_same_bits(gpu, monkeypatch, rule):
    assert_same_bits(monkeypatch, lambda: updated(gpu, rule, NUMBERS))


@pytest.mark.parametrize(
    "sizes, bad",
    [([7, 9000, 0, 4096], None), ([7, 9000], np.nan), ([3], np.inf), ([0], None), ([], None), ([3] * 43, None)],
    ids=str,
)
def test_norm(gpu, sizes, bad):
    rng = np.random.RandomState(1)
    arrays = [rng.normal(0, 1, size).astype("float32") for size in sizes]
    if bad is not None:
        arrays.append(np.array([bad], "float32"))
    pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
    counts, count = (ctypes.c_int64 * len(arrays))(*(x.size for x in arrays)), ctypes.c_int64(len(arrays))
    gpu.rtf_norm_of_all_cuda_scratch_size.restype = ctypes.c_int64
    gpu.rtf_norm_of_all_cuda_f32.restype = ctypes.c_char_p
    room, norm = empty(gpu.rtf_norm_of_all_cuda_scratch_size(counts, count)), empty(1)
    assert gpu.rtf_norm_of_all_cuda_f32(pointers, counts, count, pointer(norm), pointer(room), IN_STREAM) is None
    expected = np.sqrt(sum((x.astype("float64") ** 2).sum() for x in arrays))
    np.testing.assert_allclose(norm[0], expected, rtol=1e-6)
