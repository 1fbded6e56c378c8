"""TensorFlow's own collectives, with what other ranks send in their place: real ranks are in tests/reliability."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.engine.distributed import tf_collectives
from returnn_tf.engine.distributed.membership import Membership
from returnn_tf.engine.distributed.tf_collectives import TensorFlowCollectives
from returnn_tf.util.lazy_tf import tf


def of_rank(rank: int, size: int, *args: Any) -> TensorFlowCollectives:
    """Return the collectives of a rank."""
    addresses = tuple("node%d:7001" % index for index in range(size))
    return TensorFlowCollectives(Membership(rank, size, 0, 1, addresses, "a test", "token"), *args)


class Wire:
    """What one rank sends and another one receives."""

    def __init__(self) -> None:
        self.sent: Any = None

    def broadcast(self, tensor: Optional[Any], size: int, name: str) -> Any:
        """Return what has been sent."""
        self.sent = self.sent if tensor is None else tensor
        assert self.sent.shape == [size]
        return self.sent


@pytest.mark.parametrize("sizes", [[1], [3, 0, 2], [0, 5], [7, 1, 1, 4]], ids=str)
def test_variables_of_all_types_arrive(sizes: list[int]) -> None:
    """In one message, one after the other, whatever their sizes are."""
    dtypes = ["float32", "uint8", "int64", "float16", "bool"]
    values = [np.arange(size).astype(dtype) for dtype in dtypes for size in sizes]
    wire = Wire()
    for rank in range(2):
        variables = [tf.Variable(value if rank == 0 else np.zeros_like(value)) for value in values]
        collectives = of_rank(rank, 2, tf_collectives.RING)
        collectives._host = wire  # type: ignore[assignment]
        collectives.broadcast(variables)
        for variable, value in zip(variables, values):
            np.testing.assert_array_equal(variable.numpy(), value)
