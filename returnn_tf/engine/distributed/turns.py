"""Steps which all ranks take together, though one may have fewer batches than another: joining at the end of a pass."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from returnn_tf.engine.distributed.control import Control

Converted = Tuple[Any, Any]  # batch, tensors


class IdleBatch:
    """Stands for the batch of a step in which a rank has none: it has no sequences."""

    complete = 1.0
    num_seqs = 0
    num_rows = 0

    def __init__(self, number: int) -> None:
        """
        :param number: as if it were one batch more
        """
        self.number = number
        self.feed: Dict[str, Any] = {}
        self.seq_tags: List[str] = []
        self.seq_indices: List[int] = []
        self.num_frames: Dict[str, int] = {}
        self.max_frames: Dict[str, int] = {}


def taken_together(
    batches: Iterable[Converted],
    control: Control,
    agree: Callable[[bool], bool],
    any_batch: Optional[Callable[[], Any]] = None,
) -> Iterator[Converted]:
    """The batches of this rank, then idle ones for as long as another rank has some.

    The user does one step with each, by which ``control`` hears of the others. An idle step computes the last batch
    again, and its weight is zero.

    :param batches: (batch, tensors) of this rank
    :param control: of the trainer
    :param agree: whether something is true on any rank; asked once at the beginning
    :param any_batch: gives tensors to compute with if this rank has no batch at all
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
