"""The best labels of a softmax on a GPU, in the emulator, against sorted rows."""

import ctypes

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated, copy_sources, replace
from tests.native.cuda.calls import IN_STREAM

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def gpu():
    return best_labels_of(build_emulated("search/best_labels_cuda.cu"))


def best_labels_of(library):
    """Return a function of scores [rows, labels] and the count: highest scores, their labels, logs of the sums."""
    function = library.rtf_best_labels_cuda_f32
    function.restype = ctypes.c_char_p

    def run(x, count):
        rows, labels = x.shape
        values, indices = np.full((rows, count), np.nan, "float32"), np.full((rows, count), -1, "int32")
        log_sums = np.full(rows, np.nan, "float32")
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, values, indices, log_sums)]
        error = function(*map(ctypes.c_int64, (rows, labels, count)), *pointers, IN_STREAM)
        assert error is None, error
        return values, indices, log_sums

    return run


def check(gpu, x, count):
    values, indices, log_sums = gpu(x, count)
    order = np.argsort(-x, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=1))
    expected = np.log(np.exp(x.astype("float64") - x.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(log_sums, expected, rtol=1e-6, atol=5e-7)  # the sum may be near 1


# one label; fewer than threads; more; more wanted than threads; more entries than are collected
SIZES = [(1, 1), (7, 7), (300, 12), (1000, 999), (3001, 3), (3001, 100), (2500, 300)]


@pytest.mark.parametrize("labels, count", SIZES)
def test_best_labels(gpu, labels, count):
    check(gpu, np.random.RandomState(1).randint(-300, 300, (2, labels)).astype("float32") / 16, count)  # with ties


@pytest.mark.parametrize("others", [-np.inf, -1e30, -0.0, 2.5])
@pytest.mark.parametrize("step", [1, 100, 2600])
def test_where_most_are_equal(gpu, others, step):
    """Each step-th label has a score of its own, rising or falling; the others are equal, and may be among the best."""
    x = np.full((2, 2601), others, "float32")
    x[0, ::step] = np.arange(len(x[0, ::step]))
    x[1, ::step] = x[0, ::step][::-1]
    check(gpu, x, 50)


def test_zeros_are_equal(gpu):
    check(gpu, np.where(np.arange(600) % 3, 0.0, -0.0).astype("float32")[None], 20)


def test_nan_comes_through(gpu):
    x = np.zeros((2, 300), "float32")
    x[0, 70] = np.nan
    values, indices, log_sums = gpu(x, 2)
    assert indices.tolist() == [[70, 0], [0, 1]] and np.isnan([values[0, 0], log_sums[0]]).all()
    np.testing.assert_allclose(log_sums[1], np.log(300), rtol=1e-6)


def test_order_of_threads_does_not_matter(gpu, monkeypatch):
    x = np.random.RandomState(1).normal(0, 3, (2, 1200)).astype("float32")
    first = gpu(x, 30)
    for seed in ("2", "3"):
        monkeypatch.setenv("RTF_EMULATION_SEED", seed)
        for a, b in zip(first, gpu(x, 30)):
            np.testing.assert_array_equal(a, b)


#: what, text, what takes its place
MUTATIONS = [
    ("nothing", "", ""),
    ("a limit above the last one", "if (rank == count - 1)", "if (rank == count - 2)"),
    ("places of the warp alone", "if (other < warp) at +=", "if (false) at +="),
    ("later ones of equal keys first", "key && other < one", "key && other > one"),
    ("no bisection", "if (count_from(limit, x, labels, shared) <= RTF_MOST_BEST_LABELS)", "if (true)"),
    ("a limit that is too high", "high = middle - 1;", "high = middle - 1, limit = middle;"),
    ("0 above -0", "__ldg(x) + 0.0f", "__ldg(x)"),
    ("no barrier before the highest are compared", "shared->limit = 0;\n  __syncthreads();", "shared->limit = 0;"),
    ("no barrier before places are overwritten", "static_cast<int32_t>(i);\n    }\n    __syncthreads();",
     "static_cast<int32_t>(i);\n    }"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what, text, by", MUTATIONS, ids=[mutation[0] for mutation in MUTATIONS])
def test_mutations(tmp_path, monkeypatch, what, text, by):
    copy_sources("search", tmp_path)
    source = tmp_path / "search" / "best_labels_cuda.cu"
    replace(source, text, by)
    gpu = best_labels_of(build_emulated(str(source)))
    found = 0
    for seed in range(1, 5):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        try:
            for labels, count in SIZES[2:]:
                test_best_labels(gpu, labels, count)
            test_where_most_are_equal(gpu, -0.0, 100)
            test_zeros_are_equal(gpu)
        except (AssertionError, ValueError):  # wrong numbers, or a deadlock
            found += 1
    assert found == 0 if what == "nothing" else found > 0
