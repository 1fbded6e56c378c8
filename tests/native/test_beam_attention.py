"""Native attention in a search: against numpy, more steps than one allocation holds, ragged lengths, wrong shapes."""

import numpy as np
import pytest

from returnn_tf.native.decoding.beam_attention import beam_attention_ops, native_beam_attention, native_once_attention
from returnn_tf.util.lazy_tf import tf
from tests.native.beam_attention_cases import FRAMES, IN_PLACE, LENGTHS, ONCE, STEPS


@pytest.fixture(scope="module")
def ops():
    found = beam_attention_ops()
    assert found is not None, "the native attention has to compile where the tests run"
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("entries, heads, key, value", IN_PLACE)
def test_attention_in_a_loop(ops, entries, heads, key, value):
    """In a graph, where the op writes into the memory of the step before; hypotheses are reordered in each step."""
    rng = np.random.RandomState(1)
    steps = STEPS + 1
    qkv = rng.normal(0, 1, (steps, entries, heads, 2 * key + value)).astype("float32")
    orders = rng.randint(0, entries, (steps, entries)).astype("int32")

    def body(t, keys, values, rows, written):
        x = tf.reshape(tf.gather(tf.constant(qkv), t), [entries, heads * (2 * key + value)])
        y, keys, values, rows = native_beam_attention(ops, x, keys, values, rows, heads=heads)
        return t + 1, keys, values, tf.gather(rows, tf.gather(tf.constant(orders), t)), written.write(t, y)

    @tf.function(autograph=False)
    def run():
        start = [tf.zeros([0, entries, heads * key]), tf.zeros([0, entries, heads * value])]
        start.append(tf.zeros([entries, 0], tf.int32))
        invariants = [tf.TensorShape([]), *(tf.TensorShape([None, None, x.shape[2]]) for x in start[:2])]
        invariants += [tf.TensorShape([None, None]), tf.TensorShape(None)]
        written = tf.TensorArray(tf.float32, steps)
        state = (tf.constant(0), *start, written)
        return tf.while_loop(lambda t, *_: t < steps, body, state, shape_invariants=tuple(invariants))[-1].stack()

    history = np.zeros((entries, 0, heads, key + value))
    for t, y in enumerate(run().numpy()):
        history = np.concatenate([history, qkv[t][:, None, :, key:]], axis=1)
        energies = np.einsum("ehd,eshd->esh", qkv[t][..., :key], history[..., :key]) / key**0.5
        weights = np.exp(energies - energies.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = np.einsum("esh,eshd->ehd", weights, history[..., key:])
        np.testing.assert_allclose(y, expected.reshape([entries, -1]), rtol=1e-5, atol=1e-5)
        history = history[orders[t]]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("beam, heads, size, value", ONCE)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_once_attention(ops, beam, heads, size, value, lengths):
    """Frames after the end of a sequence count neither for all of its hypotheses nor for each by itself."""
    rng = np.random.RandomState(1)
    queries = rng.normal(0, 1, (3 * beam, heads, size)).astype("float32")
    keys, values = (rng.normal(0, 1, (3, FRAMES, heads, n)).astype("float32") for n in (size, value))
    lens = None if lengths is None else rng.randint(-1, 10, 3 * beam) if isinstance(lengths, str) else lengths
    lens = None if lens is None else np.repeat(lens, 3 * beam // len(lens)).astype("int32")
    keys[1, 5:] = 1e30 if lens is not None and not isinstance(lengths, str) else 1  # what is behind the end is not read
    given = None if lens is None else tf.constant(lens)
    found = native_once_attention(ops, *map(tf.constant, (queries, keys, values)), given, scale=0.3)
    energies = 0.3 * np.einsum("bhd,bshd->bhs", queries.astype("float64"), keys.repeat(beam, axis=0))
    energies[
        np.broadcast_to(np.arange(FRAMES) >= (FRAMES if lens is None else lens[:, None, None]), energies.shape)
    ] = -np.inf
    weights = np.exp(energies - np.maximum(energies.max(axis=2, keepdims=True), -1e30))
    weights /= np.maximum(weights.sum(axis=2, keepdims=True), 1e-30)
    np.testing.assert_allclose(found, np.einsum("bhs,bshd->bhd", weights, values.repeat(beam, axis=0)), 1e-5, 1e-5)


def test_once_attention_does_not_depend_on_others(ops):
    """A hypothesis gets the same bits in a beam of any size."""
    rng = np.random.RandomState(1)
    x = rng.normal(0, 1, (7, 2, 33)).astype("float32")
    keys, values = (tf.constant(rng.normal(0, 1, (1, 9, 2, n)), tf.float32) for n in (33, 70))
    alone = np.concatenate([native_once_attention(ops, x[i : i + 1], keys, values, None, scale=1) for i in range(7)])
    np.testing.assert_array_equal(native_once_attention(ops, x, keys, values, None, scale=1), alone)


ROWS = np.zeros((3, 1), "int32")
ROOM, NO_ROOM = np.zeros((1, 3, 4), "float32"), np.zeros((0, 3, 4), "float32")


@pytest.mark.parametrize(
    "units, keys, rows, text",
    [(6, ROOM, ROWS, "units"), (12, NO_ROOM, ROWS, "1 steps"), (12, ROOM, ROWS + 3, "0 ... 2")],
)
def test_wrong_attention(ops, units, keys, rows, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        native_beam_attention(ops, tf.zeros([3, units]), keys, keys, rows, heads=2)
    assert text in str(info.value)


@pytest.mark.parametrize(
    "shapes, lengths, text",
    [
        (([3, 2, 5], [2, 7, 2, 5], [2, 7, 2, 4]), None, "do not fit"),
        (([4, 2, 5], [2, 7, 2, 5], [2, 7, 2, 4]), np.zeros(2, "int32"), "2 lengths for 4 rows"),
    ],
)
def test_wrong_once_attention(ops, shapes, lengths, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        native_once_attention(ops, *map(tf.zeros, shapes), lengths, scale=1)
    assert text in str(info.value)
