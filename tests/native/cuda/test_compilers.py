"""Kernels for GPUs under the sanitizers of the compiler, and as nvcc compiles them."""

from __future__ import annotations

import pytest

from tests.native.cuda.align_calls import KERNELS
from tests.native.cuda.attention_calls import PASSES
from tests.native.cuda.build import SANITIZERS, check_without_spills, run_sanitized

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: Programs ``sanitized_*.cu``, and flags.
SANITIZED = [
    ("activate",),
    ("attention",),
    ("batch_norm",),
    ("beam_attention",),
    ("best_labels",),
    ("depthwise",),
    ("matrix_scans",),
    ("matrix_scans", "-DRTF_DELTA=1"),
    ("norm",),
    ("scans",),
    ("scans", "-DRTF_SELECTIVE=1"),
    ("slstm",),
    ("softmax",),
    ("update",),
]
#: Kernels that keep all numbers in registers.
WITHOUT_SPILLS = [
    "activate/activate",
    "activate/batch_norm",
    *("align/" + name for name in KERNELS),
    *("attention/" + name for name in PASSES),
    "chunk/chunk",
    "delta_scan/delta_scan",
    "depthwise/depthwise",
    "matrix_scan/matrix_scan",
    "norm/norm",
    "scan/scan",
    "search/beam_attention",
    "search/best_labels",
    "selective_scan/selective_scan",
    "softmax/softmax",
    "update/update",
]


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("case", SANITIZED, ids=" ".join)
def test_sanitizers(case, sanitizer):
    name, *flags = case
    run_sanitized("../tests/native/cuda/sanitized_%s.cu" % name, *flags, sanitizer=sanitizer)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("name", WITHOUT_SPILLS)
def test_nvcc(name, arch):
    check_without_spills(name + "_cuda.cu", arch)
