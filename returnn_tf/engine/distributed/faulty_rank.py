"""Search for the rank with the non-finite loss or gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.nonfinite import NonFiniteError

_MAX_TAGS = 20


def find_faulty_rank(
    world: World, error: NonFiniteError, seq_tags: Sequence[str], find_layer: Callable[[], Optional[str]]
) -> NonFiniteError:
    """Return the error with rank, host, sequences and layer of the first rank that is not finite on its own.

    If gradients are summed, the error occurs in the same step on all ranks, so all of them call this. With
    ``horovod_reduce_type = "param"`` only one rank does, and does not communicate.

    :param error: raised by the step
    :param seq_tags: the batch of this rank
    :param find_layer: finds the first bad layer; slow
    """
    mine: Any = None
    if not error.own_finite:
        mine = [world.name if world.size > 1 else "", list(seq_tags)[:_MAX_TAGS], find_layer()]
    found = [item for item in (world.gather(mine) if error.common else [mine]) if item]
    if not found:  # the sum of finite numbers was not finite
        return error.at([], None)
    error.where = found[0][0]
    return error.at(found[0][1], found[0][2])
