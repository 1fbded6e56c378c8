"""Batches for common steps of all ranks, some of which may have fewer batches than others (join)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from returnn_tf.engine.distributed.control import Control

Converted = tuple[Any, Any]  # batch, tensors


class IdleBatch:
    """Placeholder without sequences for a step in which this rank has no batch.

    :param number: batch number to report
    """

    complete = 1.0
    num_seqs = 0
    num_rows = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.feed: dict[str, Any] = {}
        self.seq_tags: list[str] = []
        self.seq_indices: list[int] = []
        self.num_frames: dict[str, int] = {}
        self.max_frames: dict[str, int] = {}


def joined_batches(
    batches: Iterable[Converted],
    control: Control,
    agree: Callable[[bool], bool],
    any_batch: Optional[Callable[[], Any]] = None,
) -> Iterator[Converted]:
    """Yield the batches of this rank, then idle ones for as long as another rank has batches.

    The caller does one step with each, which updates ``control``. An idle step computes the last batch again, with
    weight zero.

    :param batches: (batch, tensors) of this rank
    :param control: of the trainer
    :param agree: returns whether its argument is true on any rank; called once at the start
    :param any_batch: returns tensors to compute with if this rank has no batch at all
    """
    control.reset()
    iterator = iter(batches)
    following = next(iterator, None)
    if not agree(following is not None):
        return
    tensors, number, has_some = None, 0, following is not None
    while following is not None:
        batch, tensors = following
        number = batch.number + 1
        following = next(iterator, None)
        control.own, control.more = True, following is not None
        yield batch, tensors
        del batch
    if not has_some:
        tensors, control.any_more = None if any_batch is None else any_batch(), True
    control.own, control.more = False, False
    while control.any_more:
        yield IdleBatch(number), tensors
