"""The kernel of the softmax over many labels for GPUs in the emulator: what that for the CPU gives, and its own."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated
from tests.native.cuda.softmax_calls import SPECS, computed, inputs

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def gpu() -> ctypes.CDLL:
    return build_emulated("softmax/softmax_cuda.cu")


@pytest.fixture(scope="module")
def cpu() -> ctypes.CDLL:
    return build_emulated("softmax/softmax_cpu.cc", "-O2")


def check(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("labels", [2, 3, 33, 255, 256, 257, 700])
def test_on_a_gpu(gpu, cpu, labels, spec):
    """Fewer labels than threads, as many, and more."""
    given = (*inputs(3, labels), spec)
    expected = computed(cpu, *given)
    for options in ({}, {"in_place": True}):
        check(computed(gpu, *given, **options), expected)
    check(computed(gpu, *given, gradient=False), expected)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_large_and_equal_logits(gpu, cpu, spec):
    """The first of equal ones counts; minus infinity where nothing is smoothed."""
    z, bias, _ = inputs(4, 600)
    z *= 20
    z[0, [3, 590]] = z[0].max() + 5
    z[1, [3, 590]] = z[1].max() + 5
    bias[[3, 590]] = 0
    z[2, :3] = -np.inf if spec[1] == 0 else -90.0
    target = np.array([3, 590, 599, 7], "int32")
    got = computed(gpu, z, bias, target, spec)
    check(got, computed(cpu, z, bias, target, spec))
    assert got[1][:2].tolist() == [0, 1]


@pytest.mark.parametrize("place", [0, 299])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_stays_in_its_frame(gpu, place, bad):
    z, bias, target = inputs(3, 300)
    z[1, place] = bad
    values, _, gradient = computed(gpu, z, bias, target, SPECS[2])
    for result in (values[:, None], gradient):
        assert np.isnan(result[1]).all() and np.isfinite(result[[0, 2]]).all()


@pytest.mark.parametrize("label", [-1, 300])
def test_no_label(gpu, label):
    """It can't be an error on a GPU, and nothing beyond the logits is read."""
    z, bias, target = inputs(3, 300)
    target[1] = label
    values, errors, gradient = computed(gpu, z, bias, target, SPECS[1])
    assert np.isnan(values[1]) and errors[1] == 1 and np.isnan(gradient[1]).all()
    assert np.isfinite(gradient[[0, 2]]).all()


def test_no_frames(gpu):
    assert [x.shape for x in computed(gpu, *inputs(0, 5), SPECS[0])] == [(0,), (0,), (0, 5)]


def test_any_order_of_threads(gpu, monkeypatch):
    """The same bits."""
    found = []
    for seed in ("1", "2"):
        monkeypatch.setenv("RTF_EMULATION_SEED", seed)
        found.append(computed(gpu, *inputs(2, 700), SPECS[2], in_place=True))
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)
