"""Depthwise convolution on an emulated GPU: what the kernels for the CPU compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import assert_same_bits
from tests.native.cuda.depthwise_calls import arrays, computed, shape_of

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

#: Sequences, frames, channels, taps, dilation, zeros in front and behind: the cases of the test on the CPU with other
#: numbers of channels; more taps than a block takes at a time; more frames apart than there are; no sequences; more
#: sequences than there are blocks for the gradient of the filter.
CASES = [
    (2, 70, 35, 31, 1, 15, 15), (2, 9, 3, 4, 1, 1, 2), (3, 5, 33, 31, 1, 15, 15), (10, 12, 3, 5, 3, 6, 6),
    (2, 12, 5, 5, 2), (1, 3, 5, 4), (2, 7, 40, 3, 1, 5, 0), (2, 7, 1, 3, 1, 2, 0), (1, 1, 2, 1),
    (1, 140, 3, 70, 1, 69, 3), (2, 5, 3, 3, 9, 18, 18), (1, 150, 2, 3, 2, 9, 9), (0, 4, 5, 3, 1, 1, 1),
    (1, 90, 2, 17, 1, 16, 0), (1100, 1, 2, 3, 1, 1, 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def gpu():
    return build_emulated("depthwise/depthwise_cuda.cu")


@pytest.fixture(scope="module")
def cpu():
    return build_emulated("depthwise/depthwise_cpu.cc", "-O2")


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_on_the_cpu(gpu, cpu, case, with_bias):
    shape = shape_of(*case)
    x, w, bias, dy = arrays(shape)
    given = (shape, x, w, bias if with_bias else None, dy)
    for one, other in zip(computed(gpu, *given), computed(cpu, *given)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


def test_sums_have_the_same_bits(gpu, monkeypatch):
    shape = shape_of(5, 20, 35, 9, 2, 3, 3)
    assert_same_bits(monkeypatch, lambda: computed(gpu, shape, *arrays(shape)))


def test_nan_stays_in_reach(gpu):
    shape = shape_of(2, 9, 3, 3, 1, 1, 1)
    x, w, bias, dy = arrays(shape)
    x[1, 4, 2] = dy[0, 2, 1] = np.nan
    y, dx, dw, dbias = computed(gpu, shape, x, w, bias, dy)
    expected = [np.zeros(array.shape, bool) for array in (y, dx, dw, dbias)]
    expected[0][1, 3:6, 2] = expected[1][0, 1:4, 1] = expected[2][:, 1:] = expected[3][1] = True
    for array, is_nan in zip((y, dx, dw, dbias), expected):
        np.testing.assert_array_equal(np.isnan(array), is_nan)
