"""Decaying sums of outer products, chunk by chunk, against numpy frame by frame."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import unit_class
from returnn_tf.ops.cells.matrix.chunkwise import chunkwise
from returnn_tf.util.lazy_tf import tf

LENGTHS = [11, 0, 23, 8]
HEADS, KEYS, VALUES = 2, 3, 4


def in_numpy(q, k, v, g, state, lengths, reverse, bonus):
    """Return the outputs and last states by the recurrence itself."""
    o, last = np.zeros(v.shape), np.array(state)
    for b, length in enumerate(lengths):
        for t in range(length)[:: -1 if reverse else 1]:
            added = np.einsum("hk,hv->hkv", k[t, b], v[t, b])
            before = last[b].copy()
            last[b] = np.exp(g[t, b])[..., None] * before + added
            seen = last[b] if bonus is None else before + bonus[..., None] * added
            o[t, b] = np.einsum("hk,hkv->hv", q[t, b], seen)
    return o, last


def example(decays, lengths=LENGTHS, seed=1):
    rng = np.random.RandomState(seed)
    frames = (max(lengths), len(lengths), HEADS)
    q, k, v = (rng.normal(size=(*frames, d)) for d in (KEYS, KEYS, VALUES))
    g = -rng.gamma(0.3, size=(*frames, decays))
    return q, k, v, g, rng.normal(size=(len(lengths), HEADS, KEYS, VALUES)), rng.normal(size=(HEADS, KEYS))


@pytest.mark.parametrize("decays", [1, KEYS], ids="{} decays".format)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("with_bonus", [False, True], ids=["", "bonus"])
def test_as_frame_by_frame(decays, reverse, with_bonus):
    *arrays, state, bonus = example(decays)
    bonus = bonus if with_bonus else None
    expected = in_numpy(*arrays, state, LENGTHS, reverse, bonus)
    for x in arrays:
        for b, length in enumerate(LENGTHS):
            x[length:, b] = np.nan
    result = chunkwise(
        *map(tf.constant, arrays), tf.constant(state), lengths=tf.constant(LENGTHS), reverse=reverse, chunk=8,
        bonus=bonus if bonus is None else tf.constant(bonus),
    )  # fmt: skip
    for got, want in zip(result, expected):
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("frames", [1, 8, 13])
def test_any_number_of_frames(frames):
    *arrays, state, _ = example(KEYS, [frames] * 2)
    expected = in_numpy(*arrays, state, [frames] * 2, True, None)
    result = chunkwise(*map(tf.constant, arrays), tf.constant(state), reverse=True, chunk=8)
    for got, want in zip(result, expected):
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("decays", [1, KEYS], ids="{} decays".format)
def test_strong_decays_in_float32(decays):
    """A decay that is 0 in float neither overflows nor spoils the frames after it."""
    *arrays, state, _ = example(decays, [40, 33])
    arrays[3][5::7] = -1e4
    arrays[3][9:12] = -80
    expected = in_numpy(*arrays, state, [40, 33], False, None)
    args = [tf.constant(x, tf.float32) for x in (*arrays, state)]
    with tf.GradientTape() as tape:
        tape.watch(args)
        result = chunkwise(*args, lengths=tf.constant([40, 33]), chunk=32)
    for got, want in zip(result, expected):
        np.testing.assert_allclose(got, want, atol=1e-5)
    assert all(np.isfinite(x).all() for x in tape.gradient(result, args))


@pytest.mark.parametrize("decays,with_bonus", [(1, False), (KEYS, True)])
def test_gradient(decays, with_bonus):
    """Against differences along random directions."""
    args = [tf.constant(x) for x in example(decays, [13, 9])]
    rng = np.random.RandomState(2)
    weights = [tf.constant(rng.normal(size=shape)) for shape in ((13, 2, HEADS, VALUES), args[4].shape)]

    def score(*args):
        bonus = args[5] if with_bonus else None
        result = chunkwise(*args[:5], lengths=tf.constant([13, 9]), reverse=True, chunk=4, bonus=bonus)
        return tf.add_n([tf.reduce_sum(x * weight) for x, weight in zip(result, weights)])

    with tf.GradientTape() as tape:
        tape.watch(args)
        value = score(*args)
    gradients = tape.gradient(value, args, unconnected_gradients="zero")
    for i, (x, gradient) in enumerate(zip(args, gradients)):
        move = tf.constant(rng.normal(size=x.shape))
        ends = [score(*args[:i], x + sign * move, *args[i + 1 :]) for sign in (1e-5, -1e-5)]
        np.testing.assert_allclose(tf.reduce_sum(gradient * move), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("unit, allowed", [("gla", [4, 8, 16, 32, 64, 128, 256]), ("rwkv7", [4, 8, 16, 32, 64, 128])])
def test_numbers_of_frames_in_a_chunk(unit, allowed):
    for chunk in [*range(1, 9), 16, 32, 48, 64, 128, 256]:
        if chunk in allowed:
            assert unit_class(unit)(64, 8, unit_opts={"chunk": chunk}).opts.chunk == chunk
        else:
            with pytest.raises(ConfigError, match="unit_opts of '%s'.*'chunk'.*must be " % unit):
                unit_class(unit)(64, 8, unit_opts={"chunk": chunk})
