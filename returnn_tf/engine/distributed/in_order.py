"""Merges the results of sharded sequences back into the order of all sequences."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from returnn_tf.config import DataError
from returnn_tf.engine.distributed.world import World


def in_order(world: World, batches: Iterable[list[Any]]) -> Iterator[Any]:
    """Yield all results in sequence order on the chief; none elsewhere, but all ranks must consume it.

    Rank r has the sequences r, r + n, r + 2n, ... of n ranks, in this order. Only results of ranks ahead of the
    slowest one are buffered.

    :param batches: of this rank: for each batch a list of results, one for each sequence
    """
    waiting: list[collections.deque[Any]] = [collections.deque() for _ in range(world.size)]
    own, position, busy = iter(batches), 0, True
    while busy:
        sent = world.gather_values(next(own, None))
        busy = any(part is not None for part in sent)
        if not world.is_chief:
            continue
        for queue, part in zip(waiting, sent):
            queue.extend(part or [])
        while waiting[position % world.size]:
            yield waiting[position % world.size].popleft()
            position += 1
    if any(waiting):
        raise DataError("Sequence %i is missing in the results of the ranks; is it too long for the limits?" % position)
