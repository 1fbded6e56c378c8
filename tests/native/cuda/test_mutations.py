"""The emulator finds what is wrong with kernels whose threads do not wait, and with memory that goes too early."""

import itertools

import numpy as np
import pytest

from tests.native.cuda import (
    activate_calls,
    attention_calls,
    batch_norm_calls,
    depthwise_calls,
    norm_calls,
    softmax_calls,
    update_calls,
)
from tests.native.cuda.align_calls import Calls
from tests.native.cuda.build import build_emulated, copy_sources, replace
from tests.native.cuda.matrix_scan_calls import Scans
from tests.native.cuda.recurrences import Kernels, check, ragged
from tests.native.cuda.slstm_calls import SLstm
from tests.native.scan_cases import matrix_arrays

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

HEADERS = "common/cuda/recurrence_%s.h"
#: what, header, text, what takes its place
MUTATIONS = [
    ("nothing", "block", "", ""),
    ("x of two steps in one place", "layout", "(parity & 1) * layout.groups", "0 * layout.groups"),
    ("sums of two passes in one place", "block", "pass % 2 * kPartial", "0 * kPartial"),
    ("no barrier before the sums are added up", "block", "partial);\n      __syncthreads();", "partial);"),
    ("no barrier between two tiles", "kernels", "else\n        __syncthreads();", ""),
    ("only one thread waits", "block", "spin_pause();\n    __syncthreads();", "spin_pause();"),
    ("what others send is not awaited", "block", "arrive() {\n    __syncthreads();", "arrive() {"),
]
#: Compiling one kind of numbers takes a fourth of the time.
OTHER_NUMBERS = [
    "    case RTF_%s: return function(%s());\n" % kind
    for kind in (("FLOAT_TF32", "FloatTf32"), ("BFLOAT16", "Bfloat16"), ("FLOAT16", "Float16"))
]

#: Op, what, file, text, what takes its place.
OF_ROWS = [
    ("norm", "nothing", "norm/norm_cuda.cu", "", ""),
    ("norm", "sums of two rows in one place", "common/cuda/sums.h", "__syncthreads();  // before", "//"),
    ("norm", "sums of warps are not awaited", "common/cuda/sums.h", "= x;\n  __syncthreads();", "= x;"),
    ("norm", "teams add at the same time", "norm/norm_cuda.cu", "      });\n    __syncthreads();", "      });"),
    ("norm", "parts are not awaited", "common/cuda/sums.h", "= sum;\n  __syncthreads();", "= sum;"),
    ("norm", "rows of another block", "norm/norm_cuda.cu", "(blockIdx.x + 1) * s.rows / gridDim.x", "s.rows"),
    ("activate", "nothing", "activate/activate_cuda.cu", "", ""),
    ("activate", "sums of warps are not awaited", "activate/activate_cuda.cu", "  __syncthreads();", ""),
    ("activate", "a group of random numbers is missing", "common/cuda/philox.h", "shift ? kept", "false ? kept"),
    ("activate", "the counter does not carry", "common/cuda/philox.h", " + (low < group)", ""),
    ("batch_norm", "nothing", "activate/batch_norm_cuda.cu", "", ""),
    (
        "batch_norm",
        "moments are not awaited",
        "activate/batch_norm_cuda.cu",
        "= count;\n  __syncthreads();",
        "= count;",
    ),
    ("batch_norm", "blocks are not awaited", "activate/batch_norm_cuda.cu", "= whole;\n  __syncthreads();", "= whole;"),
    ("batch_norm", "blocks count the same", "activate/batch_norm_cuda.cu", "{counts[block],", "{1.0f,"),
    ("batch_norm", "counts of a block alone", "activate/batch_norm_cuda.cu", "counts[threadIdx.x] :", "counts[0] :"),
    ("depthwise", "nothing", "depthwise/depthwise_cuda.cu", "", ""),
    (
        "depthwise",
        "frames are not awaited",
        "depthwise/depthwise_cuda.cu",
        "weights);\n    __syncthreads();",
        "weights);",
    ),
    ("depthwise", "frames are overwritten", "depthwise/depthwise_cuda.cu", "if (tap > 0) __syncthreads();", ""),
    ("depthwise", "pieces are overwritten", "depthwise/depthwise_cuda.cu", "__syncthreads();  // the strips", "//"),
    ("depthwise", "sums are not awaited", "depthwise/depthwise_cuda.cu", "= sum;\n  __syncthreads();", "= sum;"),
    ("softmax", "nothing", "softmax/softmax_cuda.cu", "", ""),
    ("softmax", "sums of warps are not awaited", "softmax/softmax_cuda.cu", "= mine;\n  __syncthreads();", "= mine;"),
    ("softmax", "a warp is left out", "softmax/softmax_cuda.cu", "warp < kWarps", "warp < kWarps - 1"),
    ("softmax", "lanes are left out", "softmax/softmax_cuda.cu", "bits >= 1", "bits > 1"),
    ("softmax", "a sum keeps its scale", "softmax/softmax_cuda.cu", "sum = sum * e + 1.0f", "sum = sum + 1.0f"),
    ("update", "nothing", "update/update_cuda.cu", "", ""),
    ("update", "sums are not awaited", "update/update_cuda.cu", "= sum;\n  __syncthreads();", "= sum;"),
    ("update", "halves are not awaited", "update/update_cuda.cu", "+ half];\n    __syncthreads();", "+ half];"),
    (
        "update",
        "the first block of a parameter is of another",
        "update/update_cuda.cu",
        "first <= blockIdx.x",
        "first < blockIdx.x",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("what, header, text, by", MUTATIONS, ids=[mutation[0] for mutation in MUTATIONS])
def test_found(monkeypatch, tmp_path, what, header, text, by):
    copy_sources("lstm", tmp_path)
    replace(tmp_path / (HEADERS % header), text, by)
    for case in OTHER_NUMBERS:
        replace(tmp_path / (HEADERS % "run"), case, "")
    kernels = Kernels(
        build_emulated(str(tmp_path / "lstm" / "lstm_cuda.cu"), "-Wno-switch", "-Wno-unused-variable"), "lstm"
    )
    found = 0
    for multiprocessors, seed, size in itertools.product((1, 5), range(1, 7), ((3, 20, 70), (3, 60, 20))):
        monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        try:
            check(kernels, size)
        except (AssertionError, ValueError):  # wrong numbers, or a deadlock
            found += 1
    assert found == 0 if what == "nothing" else found > 0


@pytest.mark.long
@pytest.mark.parametrize("op, what, file, text, by", OF_ROWS, ids=["%s: %s" % row[:2] for row in OF_ROWS])
def test_found_in_rows(monkeypatch, tmp_path, op, what, file, text, by):
    folder = "activate" if op == "batch_norm" else op
    copy_sources(folder, tmp_path)
    replace(tmp_path / file, text, by)
    source = "%s/%s" % (folder, op)
    gpu, cpu = build_emulated(str(tmp_path / (source + "_cuda.cu"))), build_emulated(source + "_cpu.cc", "-O2")
    found = 0
    for seed, size in itertools.product(range(1, 7), ((70, 67), (9, 130), (3, 600))):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        if op == "norm":
            results = [norm_calls.computed(side, *norm_calls.arrays(*size)) for side in (gpu, cpu)]
        elif op == "batch_norm":
            mask = np.arange(size[0], dtype="uint8") % 3 // 2
            given = ("swish", mask, *batch_norm_calls.arrays(*size))
            results = [batch_norm_calls.computed(side, *given) for side in (gpu, cpu)]
        elif op == "depthwise":
            shape = depthwise_calls.shape_of(size[1], size[0], 2, 40, 1, 39)
            results = [depthwise_calls.computed(side, shape, *depthwise_calls.arrays(shape)) for side in (gpu, cpu)]
        elif op == "softmax":
            rows = (*softmax_calls.inputs(*size), softmax_calls.SPECS[1])
            results = [softmax_calls.computed(side, *rows, in_place=True) for side in (gpu, cpu)]
        elif op == "update":
            rule = update_calls.RULES[-1 - seed % 4]
            results = [update_calls.updated(side, rule, update_calls.NUMBERS) for side in (gpu, cpu)]
        else:
            inputs = activate_calls.Inputs(size, "relu", residual=False)
            results = [activate_calls.computed(side, inputs) for side in (gpu, cpu)]
        found += not all(np.allclose(*pair, rtol=1e-4, atol=1e-4) for pair in zip(*results))
    assert found == 0 if what == "nothing" else found > 0


#: of the scans with a matrix as state: what, text, what takes its place
SCAN_MUTATIONS = [
    ("nothing", "", ""),
    ("frames overwrite others", "    __syncthreads();  // the chunk before has been read\n", ""),
    ("frames are read before they are there", "count, shared);\n    __syncthreads();", "count, shared);"),
    ("lanes are left out", "half = lanes / 2; half > 0", "half = lanes / 2; half > 1"),
    ("a decay too early", "const int64_t step = begin + f - late;", "const int64_t step = begin + f;"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what, text, by", SCAN_MUTATIONS, ids=[mutation[0] for mutation in SCAN_MUTATIONS])
def test_found_in_scans(monkeypatch, tmp_path, what, text, by):
    copy_sources("matrix_scan", tmp_path)
    replace(tmp_path / "common" / "cuda" / "matrix_state.h", text, by)
    gpu = Scans(build_emulated(str(tmp_path / "matrix_scan" / "matrix_scan_cuda.cu")), "matrix", True)
    cpu = Scans(build_emulated("matrix_scan/matrix_scan_cpu.cc", "-O2"), "matrix", False)
    *frames, first = matrix_arrays(40, 9, 40).values()
    arrays = ([x[:35] for x in frames] + [first], [35, 0, 1, 17], np.ones(frames[2][:35].shape), np.ones(first.shape))
    expected, found = cpu.run(*arrays), 0
    for seed in range(1, 5):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        pairs = zip(gpu.run(*arrays), expected)
        found += not all(np.allclose(result, value, rtol=1e-4, atol=1e-3) for result, value in pairs)
    assert found == 0 if what == "nothing" else found > 0


#: of the numbers of the sLSTM that go from step to step through memory: what, text, what takes its place
SLSTM_MUTATIONS = [
    ("nothing", "", ""),
    ("n of its own frame", "arrays.states.n[at.at(at.before)]", "arrays.states.n[at.at(at.frame)]"),
    ("the excess stays where it is", "arrays.dinitial.m[at.state()] = output.excess;", ""),
]


@pytest.mark.long
@pytest.mark.parametrize("what, text, by", SLSTM_MUTATIONS, ids=[mutation[0] for mutation in SLSTM_MUTATIONS])
def test_found_in_slstm(tmp_path, what, text, by):
    copy_sources("slstm", tmp_path)
    replace(tmp_path / "slstm" / "slstm_cells.h", text, by)
    replace(
        tmp_path / "slstm" / "slstm_cuda.cu", "      case RTF_FLOAT_TF32: return function(FloatTf32(), facts);\n", ""
    )
    gpu = SLstm(build_emulated(str(tmp_path / "slstm" / "slstm_cuda.cu")), True)
    cpu = SLstm(build_emulated("slstm/slstm_cpu.cc", "-O2"), False)
    results = [side.run((4, 5, 20), ragged(4, 5)) for side in (gpu, cpu)]
    found = not all(np.allclose(*pair, rtol=1e-4, atol=1e-3) for pair in zip(*results))
    assert found == (what != "nothing")


#: Of attention: what, file, text, what takes its place.
ATTENTION_MUTATIONS = [
    ("nothing, a head at a time", "cuda_distances.h", "int64_t(1) << 25", "1"),
    ("copies are not awaited", "cuda_tiles.h", "cp_async_wait<0>();", ""),
    ("values are not awaited", "attention_cuda.cu", "    tiles_are_there();\n    if (first", "    if (first"),
    ("a lane has a maximum of its own", "attention_cuda.cu", "= largest_of_row(higher[r])", "= higher[r]"),
    ("results keep their scale", "attention_cuda.cu", "place.of(results) *= factor[place.side()];", ""),
    ("queries are overwritten", "attention_grad_cuda.cu", "    __syncthreads();\n    if (first + kTile < end) {",
     "    if (first + kTile < end) {"),
    ("dropout is read early", "attention_grad_cuda.cu", "keys, first, part);\n    __syncthreads();",
     "keys, first, part);"),
    ("the last distance is not summed", "attention_grad_cuda.cu", "distance == distances - 1", "false"),
    ("heads of another launch", "cuda_energies.h", "launch.first_head + in_launch) / s", "in_launch) / s"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what, file, text, by", ATTENTION_MUTATIONS, ids=[row[0] for row in ATTENTION_MUTATIONS])
def test_found_in_attention(monkeypatch, tmp_path, what, file, text, by):
    copy_sources("attention", tmp_path)
    folder = tmp_path / "attention"
    replace(folder / "cuda_distances.h", "case RTF_FLOAT_TF32: error = function(recurrence::FloatTf32()); break;", "")
    replace(folder / "cuda_distances.h", "case RTF_BFLOAT16: error = function(FloatBfloat16()); break;", "")
    if what.startswith("heads"):
        replace(folder / "cuda_distances.h", *ATTENTION_MUTATIONS[0][2:])
    replace(folder / file, text, by)
    kernels, cpu = (
        attention_calls.Kernels([build_emulated(source % name, *flags) for name in attention_calls.PASSES], numbers)
        for source, flags, numbers in [
            (str(folder / "%s_cuda.cu"), (), attention_calls.FLOAT), ("attention/%s_cpu.cc", ("-O2",), None),
        ]
    )  # fmt: skip
    inputs = attention_calls.packed(70, 1, 8, 8, 3, batch=2)
    expected, found = cpu(*inputs, dropout=0.3), 0
    for seed in range(1, 4):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        pairs = zip(kernels(*inputs, dropout=0.3), expected)
        found += not all(np.allclose(result, value, rtol=1e-4, atol=1e-4) for result, value in pairs)
    assert found == 0 if what.startswith("nothing") else found > 0


@pytest.mark.parametrize("text, by, message", [
    ("values_.release()", "values_.release()", None),
    ("values_.release()", "nullptr", "memory of the host was changed or freed before a copy had read it"),
], ids=["nothing", "memory that goes too early"])  # fmt: skip
def test_memory_of_the_host(tmp_path, text, by, message):
    """Integers of an alignment stay where they are until the stream has read them, which the next call finds out."""
    copy_sources("align", tmp_path)
    replace(tmp_path / "align" / "staging.h", text, by)
    calls = Calls(build_emulated(str(tmp_path / "align" / "chain_cuda.cu")))
    options = {"blank": 0, "label_loop": 1, "normalized": 0, "softmax_without_alignment": 0}
    scores, labels = np.zeros((3, 2, 4), "float32"), np.array([[1, 2], [3, 1]])
    calls.ctc(scores, [3, 2], labels, [2, 1], **options)
    if message is None:
        calls.ctc(scores, [2, 1], np.ones_like(labels), [1, 0], **options)
    else:
        with pytest.raises(AssertionError, match=message):
            calls.ctc(scores, [2, 1], np.ones_like(labels), [1, 0], **options)
