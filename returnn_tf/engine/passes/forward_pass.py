"""The values of a layer for all sequences of a dataset, in the order of the dataset."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from returnn_tf.config.errors import DistributedDataError, SettingDataError
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.dataset_pass import DatasetPass
from returnn_tf.engine.passes.dump import dump_of
from returnn_tf.engine.passes.forwarder import Forwarder, ForwardResult
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.logging.lines import phase_text


class Rows(NamedTuple):
    """The values of some sequences."""

    value: NDArray[Any]  # [sequence, ...], see `ForwardResult`
    lengths: dict[int, NDArray[Any]]  # axis, not counting the first -> int32 [sequence]
    tags: list[str]

    def each(self) -> list[Rows]:
        """Return an entry for each sequence."""
        return [
            Rows(self.value[row : row + 1], {axis: lens[row : row + 1] for axis, lens in self.lengths.items()}, [tag])
            for row, tag in enumerate(self.tags)
        ]


class ForwardPass:
    """Computes the values for the shard of this process, and collects those of all sequences of a dataset.

    :param epoch: for the order of the sequences
    :param changes: options of the batches which replace those of the config
    """

    def __init__(self, forwarder: Forwarder, source: DataSource, epoch: int, changes: Mapping[str, Any]) -> None:
        self._forwarder = forwarder
        self._source = source
        self._epoch = epoch
        self._changes = changes

    def own(self) -> Generator[Rows, None, None]:
        """Yield the values of each batch of this process."""
        phase = phase_text("forward", self._epoch, self._source.name)
        one_pass: DatasetPass[ForwardResult] = DatasetPass(
            phase, self._forwarder.tensors, lambda tensors, batch: self._forwarder.run(tensors), self._source.world
        )
        one_pass.dump = dump_of(self._forwarder.net, self._source.name, self._epoch, self._source.world)
        state = PassState()
        with contextlib.closing(one_pass.steps(self._source.batches(self._epoch, **self._changes), state)) as steps:
            for step in steps:
                yield Rows(step.result.value, step.result.lengths, step.batch.seq_tags)
        one_pass.log_end(state)

    def help_chief(self) -> None:
        """Compute the values of this process for the chief, which yields them in `all`."""
        for _ in in_order(self._source.world, (rows.each() for rows in self.own())):
            pass

    def all(self) -> Generator[Rows, None, None]:
        """Yield the values of all processes, in the order of the dataset; for the chief.

        :raises DataError: a process had other sequences than its shard
        """
        world = self._source.world
        if world.size == 1:
            yield from self.own()
            return
        order = self._source.order(self._epoch)
        number = 0
        for number, rows in enumerate(in_order(world, (rows.each() for rows in self.own())), 1):
            if order is None:
                yield rows
                continue
            wanted = self._source.dataset.tag(int(order[number - 1])) if number <= len(order) else "no further sequence"
            if rows.tags != [wanted]:
                raise SettingDataError(
                    "forward: the processes returned %r instead of %r. Sequences must not be cut or skipped: set "
                    "chunking = None and no limits, or use a single process." % (rows.tags[0], wanted)
                )
            yield rows
        if order is not None and number < len(order):
            raise SettingDataError("forward: %d of %d sequences are missing." % (len(order) - number, len(order)))


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
        raise DistributedDataError(
            "Sequence %i is missing in the results of the ranks; is it too long for the limits?" % position,
        )
