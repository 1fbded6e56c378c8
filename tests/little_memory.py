"""A function for `eval` layers that fails as an op without memory does, if a batch has too many sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from returnn_tf.util.lazy_tf import tf

_ALL = 1 << 30


class Memory:
    """How many sequences fit; set by tests."""

    sequences = _ALL

    @classmethod
    def all_fit(cls) -> None:
        """Let all batches fit again."""
        cls.sequences = _ALL


def check(x: np.ndarray) -> np.ndarray:
    """Return the array.

    :raises MemoryError: it has too many sequences; TensorFlow makes a ResourceExhaustedError of it
    """
    if len(x) > Memory.sequences:
        raise MemoryError("%d sequences" % len(x))
    return x


def limited(x: Any) -> Any:
    """Return a tensor, checked forward and backward."""

    @tf.custom_gradient
    def same(x: Any) -> Any:
        def checked(value: Any) -> Any:
            out = tf.numpy_function(check, [value], value.dtype)
            out.set_shape(value.shape)
            return out

        return checked(x), checked

    return same(x)


#: The options of a layer that passes its source on; ``from`` is to be added.
LIMITED: dict[str, Any] = {"class": "eval", "eval": lambda source, **_: limited(source(0))}
