"""The native linear recurrence: against its form in TensorFlow, wrong input, on an emulated GPU."""

import ctypes

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.native.scans.scan import native_scan, scan_ops
from returnn_tf.ops.sequence.linear_recurrence import recurrence_of_parts
from returnn_tf.util.lazy_tf import tf
from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import ALONE, IN_STREAM

CASES = [(parts, constant, reverse) for parts in (1, 2) for constant in (0, 1) for reverse in (0, 1)]


@pytest.fixture(scope="module")
def ops():
    found = scan_ops(tf.float32)
    assert found is not None, "the native recurrence has to compile where the tests run"
    return found


def arrays(parts, constant, n_frames=13, batch=5, n=37):
    """Return (a, b, h0) as lists of parts, and lengths; a state that grows would hide errors of other columns."""
    rng = np.random.RandomState(1)
    shapes = [(n,) if constant else (n_frames, batch, n), (n_frames, batch, n), (batch, n)]
    made = [[rng.normal(0, 0.5, shape).astype("float32") for _ in range(parts)] for shape in shapes]
    lengths = rng.randint(0, n_frames + 1, batch).astype("int32")
    lengths[:3] = n_frames, 0, 9
    return made, lengths


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("parts, constant, reverse", CASES)
def test_forms_agree(ops, parts, constant, reverse):
    (a, b, h0), lengths = arrays(parts, constant)
    everything = []
    for portable in (False, True):
        tensors = [tuple(tf.constant(x) for x in part) for part in (a, b, h0)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            if portable:
                with portable_ops():
                    h, last = recurrence_of_parts(*tensors, lengths, bool(reverse))
            else:
                h, last = native_scan(ops, *tensors, tf.constant(lengths), reverse=bool(reverse))
            loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in (*h, *last)])
        gradients = tape.gradient(loss, tensors)
        everything.append([*h, *last, *tf.nest.flatten(gradients)])
    for native, plain in zip(*everything):
        np.testing.assert_allclose(native, plain, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("device")
def test_many_columns(ops):
    """More than a task takes, rows that tasks share."""
    (a, b, h0), lengths = arrays(1, 0, n_frames=3, batch=5, n=3001)
    h, _ = native_scan(ops, *(tuple(map(tf.constant, x)) for x in (a, b, h0)), tf.constant(lengths.clip(0, 3)))
    state = h0[0]
    for t in range(3):
        runs = (t < lengths)[:, None]
        state = np.where(runs, a[0][t] * state + b[0][t], state)
        np.testing.assert_allclose(h[0][t], np.where(runs, state, 0), rtol=1e-5, atol=1e-6)


def test_large_arrays(ops):
    """Results beyond the size of caches are written past them: the same numbers as of half of the units at a time."""
    (a, b, h0), lengths = arrays(1, 0, n_frames=3, batch=5, n=140000 // 32 * 32)
    parts = []
    for units in (slice(None), slice(0, 70000 // 32 * 32), slice(70000 // 32 * 32, None)):
        tensors = [tf.constant(x[0][..., units]) for x in (a, b, h0)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            (h,), _ = native_scan(ops, *((x,) for x in tensors), tf.constant(lengths.clip(0, 3)))
            loss = tf.reduce_sum(h * h)
        parts.append([h.numpy(), *(x.numpy() for x in tape.gradient(loss, tensors))])
    for whole, *halves in zip(*parts):
        np.testing.assert_array_equal(whole, np.concatenate(halves, axis=-1))


def call(ops, a=(2, 3, 4), b=(2, 3, 4), h0=(3, 4), lengths=(2, 1, 0)):
    shapes = [[tf.zeros(shape)] for shape in (a, b, h0)]
    return ops.rtf_scan(*shapes, lengths=tf.constant(lengths, tf.int32), reverse=False)


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"b": (2, 3)}, "have to be [time, batch, units], not [2,3]"),
        ({"a": (2, 3, 5)}, "factors have to be [2,3,4] or [4], but are [2,3,5]"),
        ({"h0": (3, 5)}, "the initial state has to be [3, 4], but is [3,5]"),
        ({"lengths": (2, 1)}, "lengths have to be [3]"),
        ({"lengths": (2, 1, 3)}, "sequence 2 of the batch has length 3, but there are 2 frames"),
    ],
)
def test_wrong_input(ops, changed, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        call(ops, **changed)
    assert text in str(info.value)


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("frames", "batch", "units")]
    _fields_ += [("lengths", ctypes.c_void_p)]
    _fields_ += [(name, ctypes.c_int) for name in ("reverse", "padding", "parts", "constant")]


def pointers(parts):
    return (ctypes.c_void_p * 2)(*(x.ctypes.data for x in parts))


@pytest.mark.slow
@pytest.mark.parametrize("parts, constant, reverse", CASES)
def test_on_a_gpu(parts, constant, reverse):
    """In the emulator; the kernels for the CPU give the same."""
    gpu, cpu = build_emulated("scan/scan_cuda.cu"), build_emulated("scan/scan_cpu.cc", "-O2")
    n_frames, batch, n = 19, 3, 23
    (a, b, h0), lengths = arrays(parts, constant, n_frames, batch, n)
    shape = Shape(n_frames, batch, n, lengths.ctypes.data, reverse, 0, parts, constant)
    results = []
    for side in ("gpu", "cpu"):
        empty = [[np.full_like(x, np.nan) for x in like] for like in (b, h0, h0 if constant else b, b, h0)]
        h, last, da, db, dh0 = empty
        first, second = [a, b, h0, h, last], [a, h0, h, b, h0, da, db, dh0]
        for name, given in (("forward", first), ("backward", second)):
            lists = [pointers(x) for x in given]
            if side == "gpu":
                assert getattr(gpu, "rtf_scan_%s_cuda_f32" % name)(ctypes.byref(shape), *lists, IN_STREAM) == 0
            else:
                getattr(cpu, "rtf_scan_%s_f32" % name)(ctypes.byref(shape), *lists, ctypes.byref(ALONE))
        results.append([x for like in empty for x in like])
    for on_gpu, on_cpu in zip(*results):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-4, atol=1e-4)
