"""Tensors from arrays: the same values, a copy of them, and no memory lost."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.util.host_tensors import host_tensor
from tests.resident import needs_resident_memory, resident_memory

_DTYPES = ["float16", "float32", "float64", "bfloat16", "int8", "int32", "int64", "uint8", "uint16", "uint64", "bool"]


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 5)])
@pytest.mark.parametrize("dtype", _DTYPES + ["complex64"])
def test_values_are_the_same(shape: tuple[int, ...], dtype: str) -> None:
    wanted = tf.as_dtype(dtype)
    array = np.asarray(np.random.RandomState(1).uniform(0, 100, shape)).astype(wanted.as_numpy_dtype)
    for given in (array, array.T, np.asfortranarray(array)):
        tensor = host_tensor(given, wanted)
        assert tensor.dtype == wanted and tuple(tensor.shape) == given.shape
        np.testing.assert_array_equal(tensor.numpy(), given)


def test_text() -> None:
    array = np.array(["a", "bc"], object)
    assert host_tensor(array, tf.string).numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("given", ["int64", "float64", "uint8"])
def test_other_types_are_converted(given: str) -> None:
    tensor = host_tensor(np.array([1, 2, 3], given), tf.float32)
    assert tensor.dtype == tf.float32 and tensor.numpy().tolist() == [1.0, 2.0, 3.0]


def test_the_array_is_copied() -> None:
    """Its owner may change it, and a result may have the same memory as the tensor."""
    array = np.ones(100, "float32")
    tensor = host_tensor(array, tf.float32)
    array[:] = 2.0
    assert tensor.numpy().sum() == 100.0


@pytest.mark.slow
@needs_resident_memory
def test_no_memory_is_lost() -> None:
    """Of ``tf.convert_to_tensor`` 340 bytes stay for each array."""
    array: Any = np.ones(8, "int32")
    for _ in range(2000):
        host_tensor(array, tf.int32)
    gc.collect()
    before = resident_memory()
    for _ in range(20000):
        host_tensor(array, tf.int32)
    gc.collect()
    assert resident_memory() - before < 20000 * 100
