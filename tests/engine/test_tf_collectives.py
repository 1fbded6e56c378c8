"""TensorFlow's own collectives, with what other ranks send in their place: real ranks are in tests/reliability."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.config.settings.distributed import AUTO, NCCL, RING
from returnn_tf.engine.distributed import tf_collectives
from returnn_tf.engine.distributed.membership import Membership
from returnn_tf.engine.distributed.tf_collectives import TensorFlowCollectives
from returnn_tf.engine.distributed.world import MultiProcessWorld
from returnn_tf.logging.log import log
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
        collectives = of_rank(rank, 2, RING)
        collectives._host = wire  # type: ignore[assignment]
        collectives.broadcast(variables)
        for variable, value in zip(variables, values):
            np.testing.assert_array_equal(variable.numpy(), value)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the implementation of each group of devices that is made; none of them is."""
    made: list[str] = []
    monkeypatch.setattr(tf_collectives, "_Group", lambda key, device, size, hint: made.append(hint))
    return made


def found(gpus: list[str], communication: str, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> TensorFlowCollectives:
    """Return the collectives of a rank, where the GPUs of the ranks are these, each on a machine of its own."""

    def gather(own: TensorFlowCollectives, content: bytes, name: str) -> list[bytes]:
        all_of_them = [("%s on node%d" % (gpu, other) if gpu else "").encode() for other, gpu in enumerate(gpus)]
        assert content == all_of_them[rank]
        return all_of_them

    monkeypatch.setattr(TensorFlowCollectives, "gather", gather)
    monkeypatch.setattr(tf_collectives.devices, "gpu_in_use", lambda: gpus[rank])
    return of_rank(rank, len(gpus), communication)


@pytest.mark.parametrize("communication", [AUTO, NCCL])
def test_gradients_go_by_nccl_between_gpus(
    communication: str, groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the GPUs of two machines are called the same."""
    collectives = found(["0000:3B:00.0", "0000:3B:00.0"], communication, monkeypatch)
    assert groups == [RING, NCCL] and collectives.remark == "gradients by NCCL"


@pytest.mark.parametrize(
    "gpus, fault",
    [
        (["0000:3B:00.0", ""], "rank 1 has no GPU"),
        (["", "0000:3B:00.0"], "rank 0 has no GPU"),
        (["", ""], "rank 0 has no GPU"),
    ],
)
def test_gradients_go_in_a_ring_else(
    gpus: list[str], fault: str, groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank tells why, unless nobody expects otherwise."""
    with log.collected_warnings() as warnings:
        found(gpus, AUTO, monkeypatch)
    assert [text.split(". ")[0] for text in warnings] == [
        "Gradients are summed in a ring, not by NCCL, as %s" % fault
    ] * any(gpus)
    with log.collected_warnings() as warnings:
        found(gpus, AUTO, monkeypatch, rank=1)
        found(gpus, RING, monkeypatch)
    assert not warnings and groups == [RING] * 3
    with pytest.raises(ConfigError, match="needs a GPU for each rank, but " + fault):
        found(gpus, NCCL, monkeypatch)


def test_the_log_tells_how_gradients_go(groups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETURNN_TF_WORLD", "")  # restored afterwards
    for gpus, remark, expected in (
        (["a", "b"], "", "connected by TensorFlow (gradients by NCCL)"),
        (["a", "b"], "why", "connected by TensorFlow (why; gradients by NCCL)"),
        (["", ""], "why", "connected by TensorFlow (why)"),
        (["", ""], "", "connected by TensorFlow"),
    ):
        assert MultiProcessWorld(found(gpus, AUTO, monkeypatch), remark).connection == expected


@pytest.mark.parametrize(
    "gpus, fault",
    [
        (["a", "b", "c"], ""),
        (["a", "b", "a"], "ranks 0 and 2 share GPU a"),
        (["b", "a", "a", "b"], "ranks 1 and 2 share GPU a"),
        (["a", "", ""], "rank 1 has no GPU"),
    ],
    ids=str,
)
def test_gpus_of_their_own(gpus: list[str], fault: str) -> None:
    assert tf_collectives._not_of_their_own(gpus) == fault
