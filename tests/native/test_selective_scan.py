"""The native selective state space: against its form in TensorFlow, and wrong input."""

import ctypes

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.native.scans.selective_scan import native_selective_scan, selective_scan_ops
from returnn_tf.ops.sequence.selective_scan import selective_scan
from returnn_tf.util.lazy_tf import tf
from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import ALONE, IN_STREAM, pointers

NAMES = ("x", "delta", "a", "b", "c", "d", "h0")


@pytest.fixture(scope="module")
def ops():
    found = selective_scan_ops(tf.float32)
    assert found is not None, "the native op has to compile where the tests run"
    return found


def shapes(n_frames=39, batch=4, n=37, states=5):
    small = (n_frames, batch, states)
    return [(n_frames, batch, n)] * 2 + [(states, n), small, small, (n,), (batch, states, n)]


def arrays(*sizes):
    rng = np.random.RandomState(1)
    made = {name: rng.normal(0, 1, shape).astype("float32") for name, shape in zip(NAMES, shapes(*sizes))}
    made["delta"] = np.abs(made["delta"]) * 0.3
    made["a"] = -np.exp(made["a"])
    return list(made.values())


def with_gradients(function, inputs):
    tensors = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y, last = function(*tensors)
        loss = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(tf.cos(last))
    return [y, last, *tape.gradient(loss, tensors)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("ragged", [True, False])
def test_forms_agree(ops, ragged):
    """More frames than a chunk, more channels than vectors; sequences that end within a chunk, at its end, at once."""
    inputs = arrays()
    lengths = tf.constant([39, 0, 32, 17] if ragged else [39] * 4)
    native = with_gradients(lambda *x: native_selective_scan(ops, *x, lengths), inputs)
    with portable_ops():
        plain = with_gradients(lambda *x: selective_scan(*x, lengths if ragged else None), inputs)
    for got, expected in zip(native, plain):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert native[0][17:, 3].numpy().any() != ragged


@pytest.mark.usefixtures("device")
def test_channels_shared_by_tasks(ops):
    """The gradients of b and c are sums over the channels, whichever tasks have them."""
    inputs, lengths = arrays(3, 1, 300, 2), tf.constant([3])
    whole, first, second = (
        with_gradients(
            lambda *x: native_selective_scan(ops, *x, lengths),
            [x[..., part] if x.shape[-1] == 300 else x for x in inputs],
        )
        for part in (slice(None), slice(0, 70), slice(70, None))
    )
    for got, *parts in zip(whole, first, second):
        expected = sum(parts) if got.shape[-1] == 2 else np.concatenate(parts, axis=-1)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("device")
def test_backwards(ops):
    """Each sequence from its last frame to its first: as forwards on reversed sequences."""
    inputs = arrays(7, 3, 5, 2)
    lengths = np.array([7, 3, 0], "int32")
    frames = np.arange(7)[:, None]
    source = np.where(frames < lengths, lengths - 1 - frames, frames)
    flipped = [x[source, np.arange(3)] if x.shape[:2] == (7, 3) else x for x in inputs]
    y, last = native_selective_scan(ops, *map(tf.constant, inputs), tf.constant(lengths), reverse=True)
    expected, expected_last = native_selective_scan(ops, *map(tf.constant, flipped), tf.constant(lengths))
    np.testing.assert_allclose(y.numpy()[source, np.arange(3)], expected, rtol=1e-6)
    np.testing.assert_allclose(last, expected_last, rtol=1e-6)


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"x": (4, 3)}, "x has to be [time, batch, channels], but is [4,3]"),
        ({"delta": (4, 3, 6)}, "delta has to be [4,3,5], but is [4,3,6]"),
        ({"a": (2, 6)}, "a has to be [states, 5], but is [2,6]"),
        ({"c": (4, 3, 3)}, "c has to be [4,3,2], but is [4,3,3]"),
        ({"h0": (3, 10)}, "h0 has to be [3,2,5], but is [3,10]"),
        ({"lengths": (1, 5, 1)}, "sequence 1 of the batch has length 5, but there are 4 frames"),
    ],
)
def test_wrong_input(ops, changed, text):
    given = {name: tf.zeros(changed.get(name, shape)) for name, shape in zip(NAMES, shapes(4, 3, 5, 2))}
    lengths = tf.constant(changed.get("lengths", (4, 4, 4)), tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_selective_scan(**given, lengths=lengths, reverse=False)
    assert text in str(info.value)


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("frames", "batch", "units")]
    _fields_ += [("lengths", ctypes.c_void_p), ("reverse", ctypes.c_int64), ("states", ctypes.c_int64)]


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("sizes", [(35, 3, 37, 5), (4, 2, 70, 19)], ids=str)
def test_on_a_gpu(sizes, reverse):
    """In the emulator; the kernels for the CPU give the same: more than a chunk, more states than a thread has."""
    gpu = build_emulated("selective_scan/selective_scan_cuda.cu")
    cpu = build_emulated("selective_scan/selective_scan_cpu.cc", "-O2")
    inputs = arrays(*sizes)
    n_frames, batch, n, states = sizes
    lengths = np.array([n_frames, 0, 33][:batch], "int32")
    shape = Shape(n_frames, batch, n, lengths.ctypes.data, reverse, states)
    rng = np.random.RandomState(2)
    dy, dh = (rng.normal(size=x.shape).astype("float32") for x in (inputs[0], inputs[6]))
    results = []
    for library, middle, last in ((gpu, "_cuda", IN_STREAM), (cpu, "", ctypes.byref(ALONE))):
        size = getattr(library, "rtf_selective%s_scratch_size" % middle)
        size.restype = ctypes.c_int64
        scratch = np.full(size(ctypes.byref(shape)), np.nan, "float32")
        shapes_of = [inputs[0], inputs[6], np.zeros((-(-n_frames // 32), *inputs[6].shape), "float32")]
        y, h_last, kept = (np.full_like(x, np.nan) for x in shapes_of)
        wanted = [inputs[0], inputs[1], inputs[6], inputs[3], inputs[4], inputs[0][0], inputs[6]]
        gradients = [np.full_like(x, np.nan) for x in wanted]
        given = [ctypes.c_void_p(x.ctypes.data) for x in (y, h_last, kept)]
        run = getattr(library, "rtf_selective_forward%s_f32" % middle)
        failed = run(ctypes.byref(shape), pointers(inputs), *given, last)
        assert library is cpu or not failed  # that of the CPU returns nothing
        given = [ctypes.c_void_p(x.ctypes.data) for x in (kept, dy, dh)]
        run = getattr(library, "rtf_selective_backward%s_f32" % middle)
        after = (pointers(gradients), ctypes.c_void_p(scratch.ctypes.data), last)
        failed = run(ctypes.byref(shape), pointers(inputs), *given, *after)
        assert library is cpu or not failed
        results.append([y, h_last, *gradients])
    for on_gpu, on_cpu in zip(*results):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_more_sequences_than_a_grid_has_rows():
    """There are 65535 at most in the second axis of a grid."""
    gpu = build_emulated("selective_scan/selective_scan_cuda.cu")
    batch = 65_537
    inputs = arrays(1, batch, 1, 1)
    y, h_last, kept = (np.full(batch, np.nan, "float32") for _ in range(3))
    given = [ctypes.c_void_p(x.ctypes.data) for x in (y, h_last, kept)]
    shape = Shape(1, batch, 1, None, 0, 1)
    assert not gpu.rtf_selective_forward_cuda_f32(ctypes.byref(shape), pointers(inputs), *given, IN_STREAM)
    x, delta, a, b, c, d, h0 = (array.reshape(-1) for array in inputs)
    h = np.exp(delta * a) * h0 + delta * x * b
    np.testing.assert_allclose(h_last, h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y, c * h + d * x, rtol=1e-4, atol=1e-5)
