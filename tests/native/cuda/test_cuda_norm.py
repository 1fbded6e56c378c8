"""Layer normalisation on an emulated GPU: what the kernels for the CPU compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import assert_same_bits
from tests.native.cuda.norm_calls import arrays, computed

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

#: Rows and width: the cases of the test on the CPU, several rows for a block of warps, rows for a whole block, and rows
#: that do not fit into its registers.
SIZES = [(12, 130), (200, 128), (1, 256), (0, 128), (41, 7), (5, 512), (5, 513), (3, 4097)]


@pytest.fixture(scope="module")
def gpu():
    return build_emulated("norm/norm_cuda.cu")


@pytest.fixture(scope="module")
def cpu():
    return build_emulated("norm/norm_cpu.cc", "-O2")


@pytest.mark.parametrize("with_params", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_as_on_the_cpu(gpu, cpu, size, with_params):
    given = arrays(*size, with_params)
    for one, other in zip(computed(gpu, *given), computed(cpu, *given)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("size", [(9, 130), (3, 600), (2, 4100)], ids=str)
def test_in_place(gpu, size):
    given = arrays(*size)
    for one, other in zip(computed(gpu, *given, in_place=True), computed(gpu, *given)):
        np.testing.assert_array_equal(one, other)


def test_sums_have_the_same_bits(gpu, monkeypatch):
    assert_same_bits(monkeypatch, lambda: computed(gpu, *arrays(70, 131)))


@pytest.mark.parametrize("width", [5, 515])
def test_nan_stays_in_its_row(gpu, width):
    x, dy, _, _ = arrays(3, width)
    x[1, 2] = np.nan
    y, _, _, dx, dscale, dbias = computed(gpu, x, dy, None, None)
    for result in (y, dx):
        assert np.isnan(result[1]).all() and np.isfinite(result[[0, 2]]).all()
    assert np.isnan(dscale).all() and np.isfinite(dbias).all()
