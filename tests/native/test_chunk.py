"""Native chunks: against numpy and the plain form, gradients, sizes at the edges, wrong shapes; on an emulated GPU."""

import ctypes

import numpy as np
import pytest

from returnn_tf.native.chunk import chunk_ops, native_chunk, native_unchunk
from returnn_tf.ops.frames.chunks import chunk, unchunk
from returnn_tf.util.lazy_tf import tf
from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import ALONE, IN_STREAM

# frames, size, step
SIZES = [(4, 3, 2), (4, 2, 2), (7, 2, 3), (4, 4, 1), (4, 9, 5), (23, 6, 4), (1, 1, 1), (0, 3, 2), (9, 5, 5)]


@pytest.fixture(scope="module")
def ops():
    found = chunk_ops()
    assert found is not None, "the native chunks have to compile where the tests run"
    return found


def n_chunks(frames, size, step):
    return max(-(-(frames - size) // step), 0) + 1


def cut(x, size, step):
    """Return [size, batch * chunks, ...], frame by frame."""
    count = n_chunks(len(x), size, step)
    y = np.zeros((size, x.shape[1] * count, *x.shape[2:]), x.dtype)
    for b in range(x.shape[1]):
        for c in range(count):
            part = x[c * step : c * step + size, b]
            y[: len(part), b * count + c] = part
    return y


def with_gradient(function, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
        weights = tf.sin(tf.cast(tf.range(tf.size(y)), tf.float32))
        loss = tf.reduce_sum(y * tf.reshape(weights, tf.shape(y)))
    return y.numpy(), tape.gradient(loss, x).numpy()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("rest", [(3,), (), (2, 3)], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forms_agree(ops, sizes, rest):
    frames, size, step = sizes
    x = np.random.RandomState(1).normal(0, 1, (frames, 2, *rest)).astype("float32")
    parts = np.random.RandomState(2).normal(0, 1, (size, 2 * n_chunks(*sizes), *rest)).astype("float32")
    native, plain = (
        with_gradient(f, x) for f in (lambda x: native_chunk(ops, x, size, step), lambda x: chunk(x, size, step))
    )
    np.testing.assert_array_equal(native[0], cut(x, size, step))
    for a, b in zip(native, plain):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    back = [
        with_gradient(f, parts)
        for f in (lambda y: native_unchunk(ops, y, frames, size, step), lambda y: unchunk(y, frames, size, step))
    ]
    assert back[0][0].shape == x.shape
    for a, b in zip(*back):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    inside = cut(np.ones((frames, 2), "float32"), size, step) > 0
    again = native_unchunk(ops, cut(x, size, step), frames, size, step).numpy()
    covered = [t for t in range(frames) if any(c * step <= t < c * step + size for c in range(n_chunks(*sizes)))]
    np.testing.assert_allclose(again[covered], x[covered], rtol=1e-6)
    assert not back[0][1][~inside].any()


@pytest.mark.usefixtures("device")
def test_padding_is_not_read(ops):
    chunks = cut(np.ones((5, 1, 2), "float32"), 4, 3)
    chunks[2:, 1] = np.nan
    np.testing.assert_array_equal(native_unchunk(ops, chunks, 5, 4, 3), np.ones((5, 1, 2)))


OPTIONS = {"size": 2, "step": 1, "mean": False}
CHUNKS = np.zeros((2, 3, 1), "float32")


@pytest.mark.parametrize(
    "run, text",
    [
        (lambda ops: ops.rtf_chunk(x=tf.zeros([2, 3]), **OPTIONS), "has to be [time, batch, units], but is [2,3]"),
        (lambda ops: ops.rtf_unchunk(chunks=CHUNKS, frames=3, **OPTIONS), "batch * 2, units], but is [2,3,1]"),
        (lambda ops: ops.rtf_unchunk(chunks=CHUNKS, frames=-1, **OPTIONS), "0 or more"),
    ],
)
def test_wrong_input(ops, run, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        run(ops)
    assert text in str(info.value)


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("frames", "batch", "width", "size", "step", "count")]
    _fields_ += [("mean", ctypes.c_int)]


@pytest.mark.parametrize("mean", [0, 1])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_on_a_gpu(sizes, mean):
    """In the emulator; the kernels for the CPU give the same."""
    gpu, cpu = build_emulated("chunk/chunk_cuda.cu"), build_emulated("chunk/chunk_cpu.cc", "-O2")
    frames, size, step = sizes
    shape = Shape(frames, 3, 5, size, step, n_chunks(*sizes), mean)
    x = np.random.RandomState(1).normal(0, 1, (frames, 3, 5)).astype("float32")
    for name, given, result in (("chunk", x, (size, 3 * shape.count, 5)), ("unchunk", cut(x, size, step), x.shape)):
        results = [np.full(result, np.nan, "float32") for _ in range(2)]
        pointers = [[ctypes.c_void_p(a.ctypes.data) for a in (given, y)] for y in results]
        assert getattr(gpu, "rtf_%s_cuda_f32" % name)(ctypes.byref(shape), *pointers[0], IN_STREAM) == 0
        getattr(cpu, "rtf_%s_f32" % name)(ctypes.byref(shape), *pointers[1], ctypes.byref(ALONE))
        np.testing.assert_allclose(*results, rtol=1e-6, atol=1e-7)
