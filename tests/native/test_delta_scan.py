"""The native delta rule: against its form in TensorFlow, wrong input."""

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.native.scans.delta_scan import delta_scan_ops
from returnn_tf.ops.cells.matrix.delta_rule import delta_rule
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.util.lazy_tf import tf
from tests.native.scan_cases import DELTA_CASES, LENGTHS, delta_arrays


@pytest.fixture(scope="module")
def ops():
    found = delta_scan_ops(tf.float32)
    assert found is not None, "the native delta rule has to compile where the tests run"
    return found


def results(arrays, portable):
    """Return the outputs, last states and gradients, of a loss that depends on all outputs and states."""
    tensors = {name: tf.constant(x, tf.float32) for name, x in arrays.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        frames = HeadFrames(**{name: x for name, x in tensors.items() if name != "state"})
        options = {"lengths": tf.constant(LENGTHS), "chunk": 16}
        if portable:
            with portable_ops():
                y, last = delta_rule(frames, tensors["state"], **options)
        else:
            y, last = delta_rule(frames, tensors["state"], **options)
        loss = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(tf.cos(last))
    gradients = tape.gradient(loss, tensors)
    return {"y": y, "last": last, **{"gradient of " + name: x for name, x in gradients.items()}}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("keys,values,decays", DELTA_CASES)
def test_forms_agree(ops, keys, values, decays):
    arrays = delta_arrays(keys, values, decays)
    native, plain = results(arrays, False), results(arrays, True)
    for name, expected in plain.items():
        scale = max(1, np.abs(expected).max())
        np.testing.assert_allclose(native[name] / scale, expected / scale, atol=2e-5, err_msg=name)


def test_which_trial_decides(ops, monkeypatch):
    """On a GPU; the width is that of the larger side of the state."""
    asked = []
    monkeypatch.setattr("returnn_tf.ops.cells.matrix.delta_rule.pays", lambda *args: asked.append(args))
    keys, v = tf.ones((2, 3, 1, 4)), tf.ones((2, 3, 1, 5))
    y, _ = delta_rule(HeadFrames(r=keys, k=keys, v=v, a=keys, b=keys), tf.ones((3, 1, 4, 5)), lengths=None, chunk=4)
    assert y.shape == v.shape
    assert [(trial.name, width, dtype) for trial, width, dtype in asked] == [("delta rule", 5, tf.float32)]


KEYS, VALUES = (2, 3, 1, 4), (2, 3, 1, 5)
SHAPES = {"q": KEYS, "k": KEYS, "v": VALUES, "a": KEYS, "b": KEYS, "g": KEYS, "first": (3, 1, 4, 5)}


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"q": (2, 3, 4)}, "q has to be [time, batch, heads, keys], not [2,3,4]"),
        ({"b": VALUES}, "b has to be [2,3,1,4], but is [2,3,1,5]"),
        ({"g": (2, 3, 1, 2)}, "g has to be [2,3,1,4], but is [2,3,1,2]"),
        ({"first": (3, 1, 5, 4)}, "the first state has to be [3,1,4,5], but is [3,1,5,4]"),
        ({"v": (2, 3, 1, 0), "first": (3, 1, 4, 0)}, "there are no heads, keys or values"),
        ({"lengths": (2, 1, 3)}, "sequence 2 of the batch has length 3, but there are 2 frames"),
    ],
)
def test_wrong_input(ops, changed, text):
    given = {name: tf.zeros(changed.get(name, shape)) for name, shape in SHAPES.items()}
    lengths = tf.constant(changed.get("lengths", (2, 1, 0)), tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_delta_scan(**given, lengths=lengths, reverse=False)
    assert text in str(info.value)
