"""Errors of ops become messages which name the layer and the sequences."""

from __future__ import annotations

import pytest
import tensorflow as tf

from returnn_tf.config import DataError
from returnn_tf.engine.support.step_errors import naming_sequences


def _fails(op: object) -> str:
    with pytest.raises(DataError) as info, naming_sequences("train epoch 3", ["a", "b"]):
        tf.function(op, autograph=False)()
    return str(info.value)


def test_op() -> None:
    def op() -> object:
        with tf.name_scope("hidden"):
            unknown = tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([2, 2]), shape=[None, None])
            return tf.matmul(tf.zeros([2, 3]), unknown)

    text = _fails(op)
    assert text.startswith("train epoch 3: op hidden/MatMul: Matrix size-incompatible: In[0]: [2,3], In[1]: [2,2]")
    assert text.endswith("\n  sequences of the batch: a, b") and "Detected at" not in text


def test_assertion() -> None:
    def op() -> object:
        with tf.control_dependencies(
            tf.nest.flatten(tf.debugging.Assert(tf.zeros([]) > 1, ["The target's long:", [3]]))
        ):
            return tf.zeros([])

    assert _fails(op) == "train epoch 3: The target's long: [3]\n  sequences of the batch: a, b"


def test_out_of_memory() -> None:
    with pytest.raises(DataError, match="Out of memory: lower batch_size") as info:
        with naming_sequences("train epoch 1", ["s%i" % i for i in range(30)]):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    assert "OOM when allocating tensor" in str(info.value) and "s19 and 10 more" in str(info.value)


def test_a_long_list_of_values_is_cut() -> None:
    values = " ".join(["1"] * 20000)
    with pytest.raises(DataError) as info, naming_sequences("train epoch 1", ["a"]):
        raise tf.errors.InvalidArgumentError(None, None, "Received a label value of 8. Label values: " + values)
    assert "Received a label value of 8" in str(info.value) and len(str(info.value)) < 1000


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), naming_sequences("train epoch 1", []):
        1 / 0  # noqa: B018
