"""The interface to what connects the processes: sums, gathered bytes, broadcasts. Each engine implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Collectives:
    """Operations in which all ranks take part, between processes that are connected already.

    All ranks must do the same ones in the same order, those in traced functions too. Each has a name, which is the same
    on all ranks, and tells it from the others of a traced function.
    """

    #: name of the engine in messages
    engine = ""
    #: how gradients are sent, for the log, if that is worth telling
    remark = ""
    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    #: whether processes may leave and join during training
    elastic = False

    def sum(self, tensor: Any, name: str) -> Any:
        """Return the sum over the ranks, computed in host memory; traced or eagerly.

        :param tensor: same shape and dtype on all ranks
        """
        raise NotImplementedError

    def sum_group(self, tensors: Sequence[Any], name: str, *, on_host: bool = False) -> list[Any]:
        """Return the sums over the ranks of several tensors of one dtype, in one message; traced or eagerly.

        :param tensors: same shapes on all ranks
        :param on_host: whether to compute in host memory, wherever the tensors are
        """
        raise NotImplementedError

    def gather(self, content: bytes, name: str) -> list[bytes]:
        """Return the contents of all ranks, by rank; they may have different lengths."""
        raise NotImplementedError

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Set variables, in the same order on all ranks, to the values of rank 0."""
        raise NotImplementedError

    def lost_rank(self, exc: BaseException) -> str:
        """Return what an error says of a rank that has ended or is cut off; "" if it is about something else."""
        raise NotImplementedError
