"""The native GRU: against numpy in float64, numeric gradients, ragged batches, padding, wrong input."""

import numpy as np
import pytest

from returnn_tf.native import gru_ops, native_gru
from returnn_tf.native.product import rounds
from returnn_tf.ops.cells.base import CellFrames
from returnn_tf.ops.cells.gru import Gru
from returnn_tf.util.lazy_tf import tf
from tests.native import reference
from tests.native.rounding import check_errors

# time, batch, units; sizes beside the tiles of the kernels (16 lanes, 32 and 64 columns, 6 rows) and on them; then so
# many frames in all that the tile unit is used, where there is one (16 rows, 32 numbers)
SIZES = [(1, 1, 1), (5, 3, 7), (6, 9, 16), (4, 13, 37), (3, 1, 70), (7, 8, 64), (2, 12, 65), (9, 2, 128), (1, 2, 32)]
SIZES += [(16, 16, 256), (11, 24, 260), (4, 64, 96), (4, 70, 100), (4, 81, 97)]


@pytest.fixture(scope="module")
def ops():
    found = gru_ops(tf.float32)
    assert found is not None, "the native GRU has to compile where the tests run"
    return found


def draw(n_frames, batch, n, seed=1):
    """Return z, w_gates, w_candidate, h0, lengths; the first sequence has all frames, another one none."""
    rng = np.random.RandomState(seed)
    shapes = ((n_frames, batch, 3 * n), (n, 2 * n), (n, n), (batch, n))
    lengths = rng.randint(0, n_frames + 1, batch).astype("int32")
    lengths[0] = n_frames
    lengths[1:2] = 0
    scales = (0.5, *2 * [min(0.5, 2 / n**0.5)], 0.5)  # large weights amplify rounding from frame to frame
    return (*(rng.normal(0, scale, shape).astype("float32") for scale, shape in zip(scales, shapes)), lengths)


def run(ops, inputs, lengths, weights, reverse):
    """Return the results, and the gradients of their sum with ``weights``."""
    tensors = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = native_gru(ops, *tensors, lengths, reverse=reverse)
        objective = sum(tf.reduce_sum(result * weight) for result, weight in zip(results, weights))
    return results, tape.gradient(objective, tensors)


def weights_for(n_frames, batch, n):
    rng = np.random.RandomState(2)
    return [rng.normal(0, 1, shape).astype("float32") for shape in ((n_frames, batch, n), (batch, n))]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(ops, size, reverse):
    """The gradient along a random direction is that of numpy, in float64, by differences."""
    *inputs, lengths = draw(*size)
    weights = weights_for(*size)
    results, gradients = run(ops, inputs, lengths, weights, reverse)
    for result, value in zip(results, reference.gru(*inputs, lengths, reverse)):
        np.testing.assert_allclose(result, value, atol=1e-5)

    def value_at(index, direction, step):
        moved = [x.astype("float64") for x in inputs]
        moved[index] += step * direction
        return sum(float((r * w).sum()) for r, w in zip(reference.gru(*moved, lengths, reverse), weights))

    for index, gradient in enumerate(gradients):
        direction = np.random.RandomState(index).normal(0, 1, inputs[index].shape)
        slope = (value_at(index, direction, 1e-5) - value_at(index, direction, -1e-5)) / 2e-5
        assert float(np.sum(gradient * direction)) == pytest.approx(slope, rel=2e-4, abs=2e-4)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", SIZES[3:], ids=str)
def test_products_of_rounded_factors(ops, size, reverse):
    """Values and gradients are closer to those in float64 than the same loop of TensorFlow in bfloat16."""
    if not rounds("gru", tf.float32, "bfloat16"):
        pytest.skip("recurrences are not rounded here")
    inputs, (n_frames, batch, n) = draw(*size)[:4], size
    lengths, weights = np.full(batch, n_frames, "int32"), weights_for(*size)

    def plain(z, w_gates, w_candidate, h0):
        params = {"gru_cell/gates/kernel/state": w_gates, "gru_cell/candidate/kernel/state": w_candidate}
        h, last = Gru(n, 0).step_loop(params, CellFrames(z[::-1] if reverse else z, None, (h0,)))
        return h[::-1] if reverse else h, *last

    def native(*tensors):
        return native_gru(ops, *tensors, lengths, reverse=reverse, rounded=True)

    check_errors(native, plain, inputs, weights, by=len(inputs))


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_does_not_leak(ops, reverse):
    """NaN in padded frames changes nothing, nor does the gradient that comes from there."""
    *inputs, lengths = draw(6, 5, 20)
    dirty = inputs[0].copy()
    padded = np.arange(6)[:, None] >= lengths[None, :]
    dirty[padded] = np.nan
    weights = weights_for(6, 5, 20)
    clean_run = run(ops, inputs, lengths, weights, reverse)
    dirty_run = run(ops, [dirty, *inputs[1:]], lengths, weights, reverse)
    for clean, result in zip([*clean_run[0], *clean_run[1]], [*dirty_run[0], *dirty_run[1]]):
        np.testing.assert_array_equal(clean, result)
    assert not np.any(clean_run[0][0].numpy()[padded]) and not np.any(clean_run[1][0].numpy()[padded])


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("index", range(4))
def test_nan_is_seen(ops, index):
    """Numerical trouble in any input must come through to the checks above."""
    *inputs, lengths = draw(4, 2, 20)
    inputs[index].flat[3] = np.nan
    assert np.isnan(native_gru(ops, *inputs, lengths)[0].numpy()).any()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (0, 0, 4)], ids=str)
def test_empty(ops, size):
    n_frames, batch, n = size
    inputs = [np.ones(s, "float32") for s in ((n_frames, batch, 3 * n), (n, 2 * n), (n, n), (batch, n))]
    ones = [np.ones(s, "float32") for s in ((n_frames, batch, n), (batch, n))]
    (h, h_last), gradients = run(ops, inputs, tf.zeros([batch], tf.int32), ones, False)
    assert h.shape == (n_frames, batch, n)
    np.testing.assert_array_equal(h_last, inputs[3])
    np.testing.assert_array_equal(gradients[1], np.zeros((n, 2 * n)))
    np.testing.assert_array_equal(gradients[3], np.ones((batch, n)))


# all by vectors; all on the tile unit, where there is one: with 96 units a batch of fewer than 64 sequences is not
@pytest.mark.parametrize("n_frames, batch, part", [(5, 11, 1), (4, 192, 64), (4, 210, 70)])
def test_sequences_do_not_depend_on_the_batch(ops, n_frames, batch, part):
    """Bit for bit: how a batch is dealt out to threads and tiles changes no sum."""
    z, w_gates, w_candidate, h0, lengths = draw(n_frames, batch, 96)
    together = native_gru(ops, z, w_gates, w_candidate, h0, lengths)
    for b in range(0, batch, part):
        some = slice(b, b + part)
        alone = native_gru(ops, z[:, some], w_gates, w_candidate, h0[some], lengths[some])
        np.testing.assert_array_equal(alone[0], together[0][:, some])
        np.testing.assert_array_equal(alone[1], together[1][some])


BAD = [
    ("z", (5, 2, 10), "input has to be [time, batch, 12], but is [5,2,10]"),
    ("w_gates", (4, 7), "recurrent weights of the gates have to be [4, 8], but are [4,7]"),
    ("w_candidate", (4, 5), "of the candidate have to be [units, units] with at least one unit, but are [4,5]"),
    ("w_candidate", (0, 0), "with at least one unit"),
    ("h0", (3, 4), "the initial state has to be [2, 4], but is [3,4]"),
    ("lengths", (3,), "lengths have to be [2], but are [3]"),
]


@pytest.mark.parametrize("name, shape, text", BAD, ids=lambda value: str(value)[:20])
def test_wrong_shapes(ops, name, shape, text):
    shapes = {"z": (5, 2, 12), "w_gates": (4, 8), "w_candidate": (4, 4), "h0": (2, 4), "lengths": (2,), name: shape}
    x = {key: tf.ones(shape, tf.int32 if key == "lengths" else tf.float32) for key, shape in shapes.items()}
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_gru(
            z=x["z"],
            r_gates=x["w_gates"],
            r_candidate=x["w_candidate"],
            h0=x["h0"],
            lengths=x["lengths"],
            reverse=False,
        )
    assert text in str(info.value)


@pytest.mark.parametrize("length", [-1, 6])
def test_wrong_lengths(ops, length):
    *inputs, _ = draw(5, 2, 4)
    text = "sequence 1 of the batch has length %d, but there are 5" % length
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        native_gru(ops, *inputs, tf.constant([5, length]))


@pytest.mark.usefixtures("device")
def test_in_a_function_with_unknown_shapes(ops):
    """Static shapes that are not known, and the gradient while tracing."""
    shapes = [[None, None, 9], [3, 6], [3, 3], [None, 3]]

    @tf.function(input_signature=[*map(tf.TensorSpec, shapes), tf.TensorSpec([None], tf.int32)])
    def step(z, w_gates, w_candidate, h0, lengths):
        with tf.GradientTape() as tape:
            tape.watch([z, w_gates])
            h, _ = native_gru(ops, z, w_gates, w_candidate, h0, lengths)
            assert h.shape.as_list() == [None, None, 3]
            objective = tf.reduce_sum(h)
        return h, tape.gradient(objective, [z, w_gates])

    *inputs, lengths = draw(4, 2, 3)
    h, gradients = step(*inputs, lengths)
    np.testing.assert_allclose(h, reference.gru(*inputs, lengths)[0], atol=2e-6)
    assert gradients[0].shape == (4, 2, 9)
