"""The native matrix-valued recurrence: against its form in TensorFlow, strong decays, wrong input."""

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.native.scans.matrix_scan import matrix_scan_ops
from returnn_tf.ops.cells.matrix.chunkwise import chunkwise
from returnn_tf.util.lazy_tf import tf
from tests.native.scan_cases import HEADS, LENGTHS, MATRIX_CASES, matrix_arrays


@pytest.fixture(scope="module")
def ops():
    found = matrix_scan_ops(tf.float32)
    assert found is not None, "the native recurrence has to compile where the tests run"
    return found


def results(arrays, reverse, portable):
    """Return the outputs, last states and gradients, of a loss that depends on all outputs and states."""
    tensors = [tf.constant(x, tf.float32) for x in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        *inputs, bonus = tensors
        options = {"lengths": tf.constant(LENGTHS), "reverse": reverse, "bonus": bonus if bonus.shape.rank else None}
        if portable:
            with portable_ops():
                o, last = chunkwise(*inputs, **options)
        else:
            o, last = chunkwise(*inputs, **options)
        valid = tf.sequence_mask(LENGTHS, 70, tf.float32)
        loss = tf.reduce_sum(tf.sin(o) * tf.transpose(valid)[:, :, None, None]) + tf.reduce_sum(tf.cos(last))
    return [o, last, *tape.gradient(loss, tensors, unconnected_gradients="zero")]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("keys,values,decays,with_bonus,reverse", MATRIX_CASES)
def test_forms_agree(ops, keys, values, decays, with_bonus, reverse):
    bonus = np.random.RandomState(2).normal(size=(HEADS, keys)) if with_bonus else 0.0
    arrays = [*matrix_arrays(keys, values, decays).values(), bonus]
    names = ("o", "last", "q", "k", "v", "g", "first", "bonus")
    for name, native, plain in zip(names, results(arrays, reverse, False), results(arrays, reverse, True)):
        scale = max(1, np.abs(plain).max())
        np.testing.assert_allclose(native / scale, plain / scale, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("decays, name", [(4, "matrix scan"), (1, "matrix scan with one decay")])
def test_which_trial_decides(ops, monkeypatch, decays, name):
    """On a GPU; the width is that of the larger side of the state."""
    asked = []
    monkeypatch.setattr("returnn_tf.ops.cells.matrix.chunkwise.pays", lambda *args: asked.append(args))
    q, v, g, first = (tf.ones(shape) for shape in ((2, 3, 1, 4), (2, 3, 1, 5), (2, 3, 1, decays), (3, 1, 4, 5)))
    assert chunkwise(q, q, v, -g, first)[0].shape == v.shape
    assert [(trial.name, width, dtype) for trial, width, dtype in asked] == [(name, 5, tf.float32)]


SHAPES = {"q": (2, 3, 1, 4), "k": (2, 3, 1, 4), "v": (2, 3, 1, 5), "g": (2, 3, 1, 4), "first": (3, 1, 4, 5)}


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"q": (2, 3, 4)}, "q has to be [time, batch, heads, keys], not [2,3,4]"),
        ({"k": (2, 3, 1, 5)}, "k has to be [2,3,1,4], but is [2,3,1,5]"),
        ({"v": (2, 2, 1, 5)}, "v has to be [2,3,1,5], but is [2,2,1,5]"),
        ({"g": (2, 3, 1, 2)}, "g has to be [2,3,1,4], but is [2,3,1,2]"),
        ({"first": (3, 1, 5, 4)}, "the first state has to be [3,1,4,5], but is [3,1,5,4]"),
        ({"v": (2, 3, 1, 0), "first": (3, 1, 4, 0)}, "there are no heads, keys or values"),
        ({"lengths": (2, 1)}, "lengths have to be [3]"),
        ({"lengths": (2, 1, 3)}, "sequence 2 of the batch has length 3, but there are 2 frames"),
    ],
)
def test_wrong_input(ops, changed, text):
    given = {name: tf.zeros(changed.get(name, shape)) for name, shape in SHAPES.items()}
    lengths = tf.constant(changed.get("lengths", (2, 1, 0)), tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_matrix_scan(**given, lengths=lengths, reverse=False, exclusive=False)
    assert text in str(info.value)
