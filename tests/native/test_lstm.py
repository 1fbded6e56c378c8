"""The native LSTM: against numpy in float64, numeric gradients, ragged batches, padding, wrong input."""

import numpy as np
import pytest

from returnn_tf.native import lstm_ops, native_lstm
from returnn_tf.native.product import rounds
from returnn_tf.ops.cells.lstm import lstm_loop
from returnn_tf.util.lazy_tf import tf
from tests.native import reference
from tests.native.rounding import check_errors

# time, batch, units; sizes beside the tiles of the kernels (16 lanes, 64 columns, 6 rows) and on them; then so many
# frames in all that the tile unit is used, where there is one (16 rows, 32 numbers)
SIZES = [(1, 1, 1), (5, 3, 7), (6, 9, 16), (4, 13, 37), (3, 1, 70), (7, 8, 64), (2, 12, 65), (9, 2, 128)]
SIZES += [(16, 16, 256), (11, 24, 260), (4, 64, 96), (4, 70, 100), (4, 81, 97)]


@pytest.fixture(scope="module")
def ops():
    found = lstm_ops(tf.float32)
    assert found is not None, "the native LSTM has to compile where the tests run"
    return found


def draw(n_frames, batch, n, seed=1):
    """Return z, w_re, c0, h0, lengths; the first sequence has all frames, and one is empty if there are several."""
    rng = np.random.RandomState(seed)
    shapes = ((n_frames, batch, 4 * n), (n, 4 * n), (batch, n), (batch, n))
    scales = (0.5, min(0.5, 2 / n**0.5), 0.5, 0.5)  # large weights amplify rounding from frame to frame
    arrays = [rng.normal(0, scale, shape).astype("float32") for scale, shape in zip(scales, shapes)]
    lengths = rng.randint(0, n_frames + 1, batch).astype("int32")
    lengths[0] = n_frames
    lengths[1:2] = 0
    return (*arrays, lengths)


def weighted(seed, *shapes):
    rng = np.random.RandomState(seed)
    return [rng.normal(0, 1, shape).astype("float32") for shape in shapes]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(ops, size, reverse):
    """The gradient along a random direction is that of numpy, in float64, by differences."""
    *inputs, lengths = draw(*size)
    n_frames, batch, n = size
    expected = reference.lstm(*inputs, lengths, reverse)
    weights = weighted(2, (n_frames, batch, n), (batch, n), (batch, n))
    tensors = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = native_lstm(ops, *tensors, lengths, reverse=reverse)
        objective = sum(tf.reduce_sum(result * weight) for result, weight in zip(results, weights))
    gradients = tape.gradient(objective, tensors)
    for result, value in zip(results, expected):
        np.testing.assert_allclose(result, value, atol=1e-5)

    def value_at(moved):
        return sum(float((r * w).sum()) for r, w in zip(reference.lstm(*moved, lengths, reverse), weights))

    for index, gradient in enumerate(gradients):
        direction = np.random.RandomState(index).normal(0, 1, inputs[index].shape)
        moved = [[x.astype("float64") for x in inputs] for _ in range(2)]
        moved[0][index] += 1e-5 * direction
        moved[1][index] -= 1e-5 * direction
        slope = (value_at(moved[0]) - value_at(moved[1])) / 2e-5
        assert float(np.sum(gradient * direction)) == pytest.approx(slope, rel=2e-4, abs=2e-4)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_does_not_leak(ops, reverse):
    """NaN in padded frames changes nothing, nor does the gradient that comes from there."""
    z, w_re, c0, h0, lengths = draw(6, 5, 20)
    dirty, weight = z.copy(), weighted(3, (6, 5, 20))[0]
    padded = np.arange(6)[:, None] >= lengths[None, :]
    dirty[padded] = np.nan
    seen = []
    for x in (z, dirty):
        tensors = [tf.constant(v) for v in (x, w_re, c0, h0)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            h, c_last, h_last = native_lstm(ops, *tensors, lengths, reverse=reverse)
            objective = tf.reduce_sum(h * weight) + tf.reduce_sum(c_last)
        seen.append([h, c_last, h_last, *tape.gradient(objective, tensors)])
    for clean, result in zip(*seen):
        np.testing.assert_array_equal(clean, result)
    assert not np.any(seen[0][0].numpy()[padded]) and not np.any(seen[0][3].numpy()[padded])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", SIZES[3:], ids=str)
def test_products_of_rounded_factors(ops, size, reverse):
    """Values and gradients are closer to those in float64 than the same loop of TensorFlow in bfloat16."""
    if not rounds("lstm", tf.float32, "bfloat16"):
        pytest.skip("recurrences are not rounded here")
    inputs, (n_frames, batch, n) = draw(*size)[:4], size
    lengths = np.full(batch, n_frames, "int32")
    weights = weighted(2, (n_frames, batch, n), (batch, n), (batch, n))

    def plain(z, *others):
        c, h = lstm_loop(z[::-1] if reverse else z, *others)
        return h[:0:-1] if reverse else h[1:], c[-1], h[-1]

    def native(*tensors):
        return native_lstm(ops, *tensors, lengths, reverse=reverse, rounded=True)

    check_errors(native, plain, inputs, weights, by=len(inputs))


def test_rounded_products_need_the_instructions(ops):
    """A kernel that can't round refuses the attribute, as do those for GPUs."""
    z, w_re, c0, h0, lengths = draw(4, 2, 20)
    if rounds("lstm", tf.float32, "bfloat16"):
        assert native_lstm(ops, z, w_re, c0, h0, lengths, rounded=True)[0].shape == (4, 2, 20)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="LSTM: this device can't round the factors"):
        native_lstm(ops, z, w_re, c0, h0, lengths, rounded=True)


def test_nan_in_weights_is_seen(ops, device):
    """Numerical trouble must come through to the checks above."""
    z, w_re, c0, h0, lengths = draw(4, 2, 20)
    w_re[3, 5] = np.nan
    for rounded in {False, device.startswith("CPU") and rounds("lstm", tf.float32, "bfloat16")}:
        assert np.isnan(native_lstm(ops, z, w_re, c0, h0, lengths, rounded=rounded)[0].numpy()).any()


@pytest.mark.usefixtures("device")
def test_large_input_saturates(ops):
    z, w_re, c0, h0, lengths = draw(4, 2, 20)
    for scale in (1e4, -1e4, np.inf):
        assert np.isfinite(native_lstm(ops, tf.fill(z.shape, scale), w_re, c0, h0, lengths)[0].numpy()).all()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (0, 0, 4)], ids=str)
def test_empty(ops, size):
    n_frames, batch, n = size
    tensors = [tf.ones(shape) for shape in ((n_frames, batch, 4 * n), (n, 4 * n), (batch, n), (batch, n))]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        h, c, h_last = native_lstm(ops, *tensors, tf.zeros([batch], tf.int32))
        objective = tf.reduce_sum(h) + tf.reduce_sum(c) + tf.reduce_sum(h_last)
    gradients = tape.gradient(objective, tensors)
    assert h.shape == (n_frames, batch, n)
    np.testing.assert_array_equal(c, tensors[2])
    np.testing.assert_array_equal(gradients[1], np.zeros((n, 4 * n)))
    np.testing.assert_array_equal(gradients[2], np.ones((batch, n)))


# all by vectors; all on the tile unit, where there is one: with 96 units a batch of fewer than 64 sequences is not
@pytest.mark.parametrize("n_frames, batch, part", [(5, 11, 1), (4, 192, 64), (4, 210, 70)])
@pytest.mark.parametrize("rounded", [False, True])
def test_sequences_do_not_depend_on_the_batch(ops, n_frames, batch, part, rounded):
    """Bit for bit: how a batch is dealt out to threads and tiles changes no sum."""
    if rounded and not rounds("lstm", tf.float32, "bfloat16"):
        pytest.skip("recurrences are not rounded here")
    z, w_re, c0, h0, lengths = draw(n_frames, batch, 96)
    together = native_lstm(ops, z, w_re, c0, h0, lengths, rounded=rounded)
    for b in range(0, batch, part):
        some = slice(b, b + part)
        alone = native_lstm(ops, z[:, some], w_re, c0[some], h0[some], lengths[some], rounded=rounded)
        np.testing.assert_array_equal(alone[0], together[0][:, some])
        np.testing.assert_array_equal(alone[1], together[1][some])


BAD = [
    ("z", (5, 2, 10), "input has to be [time, batch, 16], but is [5,2,10]"),
    ("w_re", (4, 15), "recurrent weights have to be [units, 4 * units] with at least one unit, but are [4,15]"),
    ("w_re", (0, 0), "with at least one unit"),
    ("c0", (3, 4), "states have to be [2, 4], but are [3,4]"),
    ("h0", (1, 4), "the two initial states differ in shape"),
    ("lengths", (3,), "lengths have to be [2], but are [3]"),
]


@pytest.mark.parametrize("name, shape, text", BAD, ids=lambda value: str(value)[:20])
def test_wrong_shapes(ops, name, shape, text):
    shapes = {"z": (5, 2, 16), "w_re": (4, 16), "c0": (2, 4), "h0": (2, 4), "lengths": (2,), name: shape}
    values = {key: tf.ones(shape, tf.int32 if key == "lengths" else tf.float32) for key, shape in shapes.items()}
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_lstm(
            z=values["z"], r=values["w_re"], c0=values["c0"], h0=values["h0"], lengths=values["lengths"], reverse=False
        )
    assert text in str(info.value)


@pytest.mark.parametrize("length", [-1, 6])
def test_wrong_lengths(ops, length):
    z, w_re, c0, h0, _ = draw(5, 2, 4)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="sequence 1 of the batch has length %d, but there are 5" % length
    ):
        native_lstm(ops, z, w_re, c0, h0, tf.constant([5, length]))


@pytest.mark.usefixtures("device")
def test_in_a_function_with_unknown_shapes(ops):
    """Static shapes that are not known, and the gradient while tracing."""
    spec = [tf.TensorSpec([None, None, 12]), tf.TensorSpec([3, 12]), tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3])]

    @tf.function(input_signature=[*spec, tf.TensorSpec([None], tf.int32)])
    def step(z, w_re, c0, h0, lengths):
        with tf.GradientTape() as tape:
            tape.watch([z, w_re])
            h, _, _ = native_lstm(ops, z, w_re, c0, h0, lengths)
            assert h.shape.as_list() == [None, None, 3]
            objective = tf.reduce_sum(h)
        return h, tape.gradient(objective, [z, w_re])

    *inputs, lengths = draw(4, 2, 3)
    h, gradients = step(*inputs, lengths)
    np.testing.assert_allclose(h, reference.lstm(*inputs, lengths)[0], atol=2e-6)
    assert gradients[0].shape == (4, 2, 12)
