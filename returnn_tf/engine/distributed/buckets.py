"""Sums over the ranks of many tensors, in messages that can be sent while later tensors are still computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

#: (tensors of one dtype, name) -> their sums over the ranks, as `Collectives.sum_group`.
SumGroup = Callable[[list[Any], str], list[Any]]

MEGABYTE = 1 << 20


def buckets(tensors: Sequence[Any], size: float) -> list[list[int]]:
    """Divide tensors into messages of one dtype each.

    A bucket ends with the tensor that fills it. One that would fill a bucket is one by itself, as joining tensors means
    copying them; smaller ones before and after it still share theirs.

    :param tensors: with static shapes, in the order in which they are computed
    :param size: bytes from which on a bucket is full; 0: each tensor is one
    :return: indices of the tensors by bucket, in the order in which the buckets are complete
    """
    found: list[list[int]] = []
    filling: dict[str, list[int]] = {}  # by dtype
    filled: dict[str, int] = {}
    for index, tensor in enumerate(tensors):
        dtype, own = tensor.dtype.name, tensor.shape.num_elements() * tensor.dtype.size
        if own >= size:
            found.append([index])
            continue
        filling.setdefault(dtype, []).append(index)
        filled[dtype] = filled.get(dtype, 0) + own
        if filled[dtype] >= size:
            found.append(filling.pop(dtype))
            del filled[dtype]
    return found + list(filling.values())


def sum_in_buckets(tensors: Sequence[Any], name: str, size: float, sum_group: SumGroup) -> list[Any]:
    """Return the sums over the ranks. Emits a reduction for each bucket, which waits for its own tensors only.

    The buckets are the same in each run, so that the sums of more than two ranks have the same order, too.

    :param tensors: of any dtypes; order, shapes and dtypes are the same on all ranks
    :param name: begins the names of the reductions
    :param size: bytes, see `buckets`
    """
    sums: list[Any] = [None] * len(tensors)
    for number, indices in enumerate(buckets(tensors, size)):
        summed = sum_group([tensors[index] for index in indices], "%s.%d" % (name, number))
        for index, value in zip(indices, summed):
            sums[index] = value
    return sums
