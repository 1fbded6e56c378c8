"""The native MDLSTM: against numpy in float64, numeric gradients, ragged images, plain TensorFlow, wrong input."""

import functools

import numpy as np
import pytest

from returnn_tf.native import mdlstm_ops, native_mdlstm
from returnn_tf.native.product import rounds
from returnn_tf.ops.dense.mdlstm import mdlstm
from returnn_tf.util.lazy_tf import tf
from tests.native import mdlstm_cases as cases
from tests.native.rounding import check_errors


@pytest.fixture(scope="module")
def ops():
    found = mdlstm_ops()
    assert found is not None, "the native MDLSTM has to compile where the tests run"
    return found


@pytest.fixture(scope="module")
def form(ops):
    return functools.partial(native_mdlstm, ops)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("size", cases.SIZES, ids=str)
def test_values_and_gradients(form, size, stable):
    cases.check_values_and_gradients(form, size, cases.FLIPS, stable)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_directions(form, count):
    """As many shares of the images as make all threads busy."""
    cases.check_values_and_gradients(form, (5, 3, 4, 6), cases.FLIPS[-count:], True)


@pytest.mark.usefixtures("device")
def test_more_directions_than_a_launch_on_a_gpu_takes(form):
    cases.check_values_and_gradients(form, (3, 4, 5, 6), [*cases.FLIPS, *cases.FLIPS[:2]], True)


@pytest.mark.usefixtures("device")
def test_padding_does_not_leak(form):
    cases.check_padding(form)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("size", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 0, 0)], ids=str)
def test_empty(form, size):
    cases.check_empty(form, size)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("stable", [True, False])
def test_as_in_plain_tensorflow(form, stable):
    """All gradients, of larger images than numpy has time for."""
    size = (6, 9, 23, 30)
    arrays, heights, widths = cases.draw(*size, count=4)
    arrays[4:] = [0.3 * x for x in arrays[4:]]  # else two forget gates enlarge the last digits from pixel to pixel
    weights = [np.random.RandomState(3).normal(0, 1, size).astype("float32")] * 4
    native, plain = (cases.gradients(f, arrays, heights, widths, cases.FLIPS, weights, stable) for f in (form, mdlstm))
    for one, other in zip([*native[0], *native[1]], [*plain[0], *plain[1]]):
        np.testing.assert_allclose(one, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("size", [(2, 3, 4, 20), (3, 4, 5, 64), (1, 9, 2, 33)], ids=str)
def test_products_of_rounded_factors(form, size, stable):
    """Values and gradients are closer to those in float64 than the same loop of TensorFlow in bfloat16."""
    if not rounds("mdlstm", tf.float32, "bfloat16"):
        pytest.skip("recurrences are not rounded here")
    arrays = cases.draw(*size, count=2)[0]
    flips, sizes = cases.FLIPS[1:3], [tf.fill([size[0]], length) for length in size[1:3]]
    weights = [np.random.RandomState(3).normal(0, 1, size) for _ in flips]

    def call(form, *tensors):
        return form(tensors[:2], tensors[2:4], tensors[4:], *sizes, flips, stable=stable)

    native, plain = functools.partial(call, functools.partial(form, rounded=True)), functools.partial(call, mdlstm)
    check_errors(native, plain, arrays, weights, by=len(arrays))


def test_rounded_products_need_the_instructions(form):
    """A kernel that can't round refuses the attribute, as do those for GPUs."""
    arrays, heights, widths = cases.draw(2, 3, 4, 20)
    rounding = functools.partial(form, rounded=True)
    if rounds("mdlstm", tf.float32, "bfloat16"):
        assert cases.run(rounding, arrays, heights, widths, cases.FLIPS[:1])[0].shape == (2, 3, 4, 20)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="MDLSTM: this device can't round the factors"):
        cases.run(rounding, arrays, heights, widths, cases.FLIPS[:1])


@pytest.mark.parametrize("rounded", [False, True])
def test_images_do_not_depend_on_the_batch(form, rounded):
    """Bit for bit: how a batch is dealt out to threads and tiles changes no sum; nor does its padding."""
    if rounded and not rounds("mdlstm", tf.float32, "bfloat16"):
        pytest.skip("recurrences are not rounded here")
    form = functools.partial(form, rounded=rounded)
    arrays, heights, widths = cases.draw(7, 6, 8, 20, count=2)
    flips = cases.FLIPS[1:3]
    together = cases.run(form, arrays, heights, widths, flips)
    for b in range(7):
        one, height, width = slice(b, b + 1), heights[b], widths[b]
        images = [x[one, :height, :width] for x in arrays[:2]]
        alone = cases.run(form, [*images, *arrays[2:]], heights[one], widths[one], flips)
        for x, y in zip(alone, together):
            np.testing.assert_array_equal(x, y[one, :height, :width])


def test_nan_in_weights_is_seen(form, device):
    arrays, heights, widths = cases.draw(2, 3, 4, 20)
    arrays[1][3, 5] = np.nan
    for rounded in {False, device.startswith("CPU") and rounds("mdlstm", tf.float32, "bfloat16")}:
        rounding = functools.partial(form, rounded=rounded)
        assert np.isnan(cases.run(rounding, arrays, heights, widths, cases.FLIPS[:1])[0].numpy()).any()


BAD = [
    ("z", (2, 3, 4, 19), "input has to be [batch, rows, columns, 20], but is [2,3,4,19]"),
    ("r", (8, 15), "recurrent weights have to be [2 * units, 5 * units] with at least one unit, but are [8,15]"),
    ("r", (0, 0), "with at least one unit"),
    ("heights", (3,), "heights have to be [2], but are [3]"),
    ("widths", (2, 1), "widths have to be [2], but are [2,1]"),
]


def call(ops, **changed):
    values = {"z": tf.ones((2, 3, 4, 20)), "r": tf.ones((8, 20)), "heights": [3, 3], "widths": [4, 4], **changed}
    sizes = {key: tf.cast(values[key], tf.int32) for key in ("heights", "widths")}
    return ops.rtf_md_lstm(
        z=[values["z"]], r=[values["r"]], **sizes, flip_rows=[False], flip_columns=[False], stable=True
    )


@pytest.mark.parametrize("name, shape, text", BAD, ids=lambda value: str(value)[:20])
def test_wrong_shapes(ops, name, shape, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        call(ops, **{name: tf.ones(shape)})
    assert text in str(info.value)


@pytest.mark.parametrize("name, value, most", [("heights", -1, 3), ("heights", 4, 3), ("widths", 5, 4)])
def test_wrong_sizes(ops, name, value, most):
    message = "image 1 of the batch has %d in %s, but the array has %d" % (value, name, most)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(ops, **{name: [1, value]})


def test_in_a_function_with_unknown_shapes(ops, form):
    """Static shapes that are not known, and the gradient while tracing."""
    sizes = tf.TensorSpec([None], tf.int32)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 15]), sizes, sizes])
    def step(z, heights, widths):
        with tf.GradientTape() as tape:
            tape.watch(z)
            (h,) = form([z], [tf.ones((3, 15))], [tf.ones((3, 15))], heights, widths, [(False, False)])
            assert h.shape.as_list() == [None, None, None, 3]
            objective = tf.reduce_sum(h)
        return h, tape.gradient(objective, z)

    h, gradient = step(tf.ones((2, 3, 4, 15)), [3, 1], [2, 4])
    assert h.shape == (2, 3, 4, 3) and gradient.shape == (2, 3, 4, 15)
