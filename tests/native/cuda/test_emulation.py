"""The emulator of CUDA: it computes what a GPU computes, and finds what is wrong in a kernel."""

import ctypes
import os

import numpy as np
import pytest

from returnn_tf.util.lazy_tf import tf
from tests.native.cuda.build import HERE, SANITIZERS, build_emulated, compile_for_gpu, run_sanitized
from tests.tiers import usual

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

SANITIZED = os.path.join(HERE, "sanitized_kernels.cu")
KERNELS = os.path.join(HERE, "kernels_of_the_tests.cu")


@pytest.fixture(scope="module")
def kernels():
    return build_emulated(KERNELS, "-Wno-sign-compare")


@pytest.fixture(params=range(6))
def seed(request, monkeypatch):
    monkeypatch.setenv("RTF_EMULATION_SEED", str(request.param))


def call(function, *args):
    """Call a function with arrays and integers; the text of its error, or ""."""
    function.restype = ctypes.c_char_p
    converted = [ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else ctypes.c_int(x) for x in args]
    return (function(*converted) or b"").decode()


def random(*shape):
    return np.random.RandomState(1).normal(0, 1, shape).astype("float32")


def test_barrier(kernels, seed):
    x, y = random(100), np.zeros(100, "float32")
    assert call(kernels.test_reverse, x, y, 100, 128, 400, 1) == ""
    assert (y == x[::-1]).all()


def test_missing_barrier(kernels, seed):
    x, y = random(100), np.zeros(100, "float32")
    assert call(kernels.test_reverse, x, y, 100, 128, 400, 0) == ""
    assert np.isnan(y).any()


def test_deadlock(kernels, seed, capfd):
    x, y = random(32), np.zeros(32, "float32")
    message = call(kernels.test_deadlock, x, y)
    assert message.startswith("deadlock: all threads that are left wait for others")
    assert "thread (0, 0, 0) waits in __shfl_sync at" in message and "(and 15 more)" in message
    assert "thread (16, 0, 0) waits in __syncthreads at" in message and "kernels_of_the_tests.cu:" in message
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("cooperative", [0, 1])
def test_endless(kernels, seed, cooperative, capfd):
    message = call(kernels.test_endless, np.zeros(1, "uint32"), cooperative)
    assert "waits in spin_pause at" in message and "deadlock" in message
    assert ("ordinary launch" in message) == (not cooperative)


@pytest.mark.parametrize("blocks, threads", [(1, 1), (4, 32), (16, 64), (5, 256)])
def test_grid_barrier(kernels, seed, blocks, threads):
    n_steps, x = 7, random(blocks)
    y = np.full((n_steps + 1, blocks), np.nan, "float32")
    y[0] = 0
    counter = np.zeros(1, "uint32")
    assert call(kernels.test_steps, x, y, counter, n_steps, blocks, threads, 1) == ""
    expected = np.zeros(blocks)
    for step in range(1, n_steps + 1):
        expected = x + 0.5 * expected.sum()
        np.testing.assert_allclose(y[step], expected, rtol=1e-5, atol=1e-4)
    assert counter[0] == n_steps * blocks


def test_missing_grid_barrier(kernels, seed):
    y = np.full((8, 4), np.nan, "float32")
    y[0] = 0
    assert call(kernels.test_steps, random(4), y, np.zeros(1, "uint32"), 7, 4, 32, 0) == ""
    assert np.isnan(y).any()


@pytest.mark.parametrize("buffers", [2, 1])
def test_slow_threads(kernels, monkeypatch, buffers):
    """What is overwritten too early is seen by some of a few seeds, also where most threads are fast enough."""
    x, n_rounds, wrong = random(96), 3, 0
    expected = x
    for _ in range(n_rounds):
        expected = np.float32(0.5) * (expected + np.roll(expected, -40))
    for number in range(8):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(number))
        y = np.zeros(96, "float32")
        assert call(kernels.test_rounds, x, y, n_rounds, 96, buffers) == ""
        wrong += not (y == expected).all()
    assert wrong == 0 if buffers == 2 else wrong >= 2


@pytest.mark.parametrize("sms, blocks, fits", [(1, 8, True), (1, 9, False), (2, 16, True), (4, 33, False)])
def test_cooperative_launch_fits(kernels, monkeypatch, sms, blocks, fits):
    monkeypatch.setenv("RTF_EMULATION_SMS", str(sms))
    y = np.zeros((2, blocks), "float32")
    message = call(kernels.test_steps, random(blocks), y, np.zeros(1, "uint32"), 1, blocks, 256, 1)
    assert message == ("" if fits else "too many blocks in cooperative launch")


@pytest.mark.parametrize(
    "threads, shared_bytes, message",
    [(0, 4, "invalid configuration argument"), (1025, 4, "invalid configuration argument"),
     (32, 228 * 1024, "invalid argument"), (1024, 227 * 1024, "")],
)  # fmt: skip
def test_limits(kernels, threads, shared_bytes, message):
    assert call(kernels.test_reverse, random(1), np.zeros(1, "float32"), 1, threads, shared_bytes, 1) == message


def test_writes_behind_shared_memory(kernels, seed):
    """Those of the last four bytes. On a GPU they may be another block's."""
    x, y = random(100), np.zeros(100, "float32")
    assert "wrote behind its shared memory" in call(kernels.test_reverse, x, y, 100, 128, 396, 1)


@pytest.mark.parametrize("x_from, y_from, told", [(4, 2, ""), (2, 0, "float4"), (0, 1, "float2")])
def test_alignment(kernels, x_from, y_from, told):
    """On a GPU it is an error, where a CPU reads the vector or, with some instructions, ends the program."""
    x, y = np.zeros(12, "float32"), np.zeros(8, "float32")
    x, y = (a[-a.ctypes.data % 16 // 4 :] for a in (x, y))  # from a multiple of 16 on
    x[:] = np.arange(len(x))
    message = call(kernels.test_vector, x, y, x_from, y_from)
    if not told:
        assert message == "" and y[y_from : y_from + 2].tolist() == [x_from, x_from + 3]
        return
    size = {"float4": 16, "float2": 8}[told]
    assert message.startswith("access to ") and told in message.partition(" at ")[0]
    assert "kernels_of_the_tests.cu:" in message and "the address is no multiple of %d" % size in message


@pytest.mark.parametrize("which", range(5), ids=["kernel", "copy", "zeros", "host function", "waiting"])
def test_default_stream(kernels, which):
    """It does not wait for TensorFlow's, nor that for it: on a GPU results would be wrong now and then."""
    x, y = random(1), np.full(1, np.nan, "float32")
    assert call(kernels.test_default_stream, x, y, which) == "work on another stream than that of the op"
    assert np.isnan(y).all()


def test_warps(kernels, seed):
    x, y = random(32), np.zeros((32, 11), "float32")
    assert call(kernels.test_warps, x, y) == ""
    lane = np.arange(32)
    sources = [
        np.full(32, 5),
        lane // 8 * 8 + 3,
        np.where(lane >= 2, lane - 2, lane),
        np.where(lane % 8 >= 2, lane - 2, lane),
        np.where(lane + 3 < 32, lane + 3, lane),
        np.where(lane % 16 + 3 < 16, lane + 3, lane),
        lane ^ 4,
    ]
    for column, source in enumerate(sources):
        assert (y[:, column] == x[source]).all()
    np.testing.assert_allclose(y[:, 7], x.sum(), rtol=1e-5)
    assert (y[:, 8] == (x > 0).sum()).all()
    assert (y[:, 9] == (x > 1.5).any()).all() and (y[:, 10] == (x > -1.5).all()).all()


@pytest.mark.parametrize("which, k, bits", [(0, 8, 10), (1, 16, 7), (2, 16, 10), (3, 8, 7)])
def test_tensor_cores(kernels, seed, which, k, bits):
    a, b, d = random(16, k), random(k, 8), np.full((16, 8), np.nan, "float32")
    assert call(kernels.test_product, which, a, b, d) == ""
    rounded = [_round(x.astype("float64"), bits) for x in (a, b)]
    np.testing.assert_allclose(d, rounded[0] @ rounded[1], rtol=1e-6, atol=1e-6)
    assert np.abs(d - a @ b).max() > 1e-5  # it is less exact than float


def _round(x, bits):
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)


@pytest.mark.parametrize("n", [1, 4, 127, 128, 1000])
def test_copies(kernels, seed, n):
    x, y = random(n + 3), np.full(n + 3, np.nan, "float32")
    assert call(kernels.test_copy, x, y, n, 32, 1) == ""
    assert (y[:n] == x[:n]).all() and np.isnan(y[n:]).all()


def test_copies_without_waiting(kernels, seed):
    x, y = random(1000), np.zeros(1000, "float32")
    assert call(kernels.test_copy, x, y, 1000, 32, 0) == ""
    assert (y != x).any()


def test_atomics(kernels, seed):
    x = np.random.RandomState(1).randint(0, 7, 1000).astype("int32")
    counts, most = np.zeros(7, "int32"), np.zeros(1, "int32")
    assert call(kernels.test_count, x, counts, most, 1000, 3, 64) == ""
    assert (counts == np.bincount(x)).all() and most[0] == 6


def test_places_beyond_32_bits(kernels):
    """Of the states of the MDLSTM: more than 2^31 numbers are 8 GiB."""
    places = np.zeros(2, "int64")
    assert call(kernels.test_far_places, 3 << 20, 1028, (3 << 20) - 1, places) == ""
    assert places.tolist() == [((3 << 20) - 1) * 1028, ((6 << 20) - 1) * 1028]


def test_counters_beyond_32_bits(kernels):
    """Of barriers: a counter that has passed 2^32 is behind one that has not only by its bits."""
    most = (1 << 32) - 1
    cases = [
        (0, 0, 1),
        (5, 4, 1),
        (3, 4, 0),
        (most, most, 1),
        (2, most, 1),
        (most - 7, 1, 0),
        (0, 3, 0),
        (1 << 31, 9, 1),
    ]
    counters, numbers = (np.array(column, "uint32") for column in list(zip(*cases))[:2])
    reached = np.zeros(len(cases), "int32")
    assert call(kernels.test_counters, counters, numbers, reached, len(cases)) == ""
    assert reached.tolist() == [case[2] for case in cases]


@pytest.mark.parametrize("counter", [(5, 7), ((1 << 64) - 3, 7)], ids=["counter", "carry"])
def test_random_numbers_of_tensorflow(kernels, counter):
    """Any part of what its stateless ops draw on a CPU."""
    key, skipped, groups = 2**63 + 12345678901, 2, 4
    state, numbers = np.array([key, *counter, skipped], "uint64"), np.zeros(4 * groups, "uint32")
    assert call(kernels.test_philox, state, numbers, groups) == ""
    drawn = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4 * (skipped + groups)], key=tf.constant([key], tf.uint64), counter=tf.constant(counter, tf.uint64),
        alg=1, dtype=tf.uint32,
    )  # fmt: skip
    assert (numbers == drawn.numpy()[4 * skipped :]).all()


def test_same_seed_same_run(kernels, monkeypatch):
    results = []
    for seed in (3, 3, 4, 5):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        y = np.zeros(100, "float32")
        call(kernels.test_reverse, random(100), y, 100, 128, 400, 0)
        results.append(np.isnan(y).tolist())
    assert results[0] == results[1]
    assert results[0] != results[2] or results[0] != results[3]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc(arch):
    assert "spill stores" in compile_for_gpu(KERNELS, arch)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", usual(range(6), [1]))
def test_sanitizers(sanitizer, seed):
    run_sanitized(SANITIZED, "-Wno-sign-compare", seed=seed, sanitizer=sanitizer)


@pytest.mark.parametrize(
    "sanitizer, wrong, message",
    [("address,undefined", "memory", "heap-buffer-overflow"), ("thread", "race", "data race")],
)
def test_sanitizers_find_what_is_wrong(sanitizer, wrong, message):
    with pytest.raises(AssertionError, match=message):
        run_sanitized(SANITIZED, "-Wno-sign-compare", arguments=[wrong], sanitizer=sanitizer)
