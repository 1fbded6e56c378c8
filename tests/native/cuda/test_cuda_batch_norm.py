"""Batch normalisation and an activation on an emulated GPU: what the kernels for the CPU compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.cuda.activate_calls import FUNCTIONS
from tests.native.cuda.batch_norm_calls import arrays, computed
from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import assert_same_bits

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

#: Rows and width: columns of several blocks, with and without a rest; fewer rows than warps; rows of several blocks.
SIZES = [(120, 130), (2, 130), (0, 3), (1, 1), (5, 256), (41, 7), (300, 5)]


@pytest.fixture(scope="module")
def gpu():
    return build_emulated("activate/batch_norm_cuda.cu")


@pytest.fixture(scope="module")
def cpu():
    return build_emulated("activate/batch_norm_cpu.cc", "-O2")


def mask_of(rows, kind):
    """Return the mask of a kind: all rows without one, rows at random, the first ones, no rows."""
    first = np.arange(rows) < rows // 3
    drawn = np.random.RandomState(2).randint(0, 2, rows) > 0
    return {"all": None, "drawn": drawn, "first": first, "none": np.zeros(rows)}[kind]


def check(gpu, cpu, function, mask, given):
    mask = None if mask is None else mask.astype("uint8")
    for one, other in zip(computed(gpu, function, mask, *given), computed(cpu, function, mask, *given)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-5 * (1 + np.abs(other).max(initial=0)))


@pytest.mark.parametrize("kind", ["all", "drawn", "first", "none"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_as_on_the_cpu(gpu, cpu, size, kind):
    check(gpu, cpu, "swish", mask_of(size[0], kind), arrays(*size))


@pytest.mark.parametrize("with_params", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(gpu, cpu, function, with_params):
    check(gpu, cpu, function, mask_of(40, "drawn"), arrays(40, 35, with_params))


def test_moments_far_from_zero(gpu):
    x, *others = arrays(200, 3)
    mask = mask_of(200, "drawn").astype("uint8")
    x += 1000
    mean, variance, *_ = computed(gpu, "identity", mask, x, *others)
    valid = x[mask > 0].astype("float64")
    np.testing.assert_allclose(mean, valid.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, valid.var(0), rtol=1e-4)


def test_in_place(gpu):
    mask, given = mask_of(40, "drawn").astype("uint8"), arrays(40, 130)
    for one, other in zip(computed(gpu, "gelu", mask, *given, in_place=True), computed(gpu, "gelu", mask, *given)):
        np.testing.assert_array_equal(one, other)


def test_sums_have_the_same_bits(gpu, monkeypatch):
    mask = mask_of(170, "drawn").astype("uint8")
    assert_same_bits(monkeypatch, lambda: computed(gpu, "swish", mask, *arrays(170, 37)))


def test_what_is_masked_does_not_matter_for_moments(gpu):
    x, *others = arrays(50, 4)
    mask = mask_of(50, "drawn").astype("uint8")
    expected = computed(gpu, "relu", mask, x, *others)
    x[mask == 0] = np.nan
    mean, variance, y, *_ = computed(gpu, "relu", mask, x, *others)
    for one, other in zip((mean, variance, y[mask > 0]), (*expected[:2], expected[2][mask > 0])):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(y[mask == 0]).all()
