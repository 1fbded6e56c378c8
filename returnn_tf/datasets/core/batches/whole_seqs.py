"""Batches of whole sequences with known lengths: the same as by `plan_batches` and `assemble`, in a third of the time.

Corpora of many short sequences spend more time on each sequence in Python than on reading. So nothing is made for a
single sequence here, neither a slice nor a `Example`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.datasets.core.batches.batch import Batch, BatchPlan, assemble, padded, with_tags
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.batches.batching import BatchStats, SeqFilter, limits
from returnn_tf.datasets.core.batches.slices import Slice
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.together import Together


def is_applicable(dataset: Any, options: BatchOptions, cutting: Mapping[str, Any]) -> bool:
    """Return whether batches of an epoch can be made here.

    :param cutting: the options chunking and context
    """
    opts = dataset.opts
    return (
        options.recurrent_net
        and not any(value is not None for value in cutting.values())
        and not (options.seq_drop or options.max_total_num_seqs)
        and not (opts.shuffle_frames_of_nseqs or opts.skip_broken_seqs)
        and opts.window == 1
    )


class WholeSeqs:
    """Plans and makes the batches of an epoch.

    :param epoch: `datasets.core.epoch.Epoch`
    :param together: its data and lengths
    """

    def __init__(self, epoch: Any, together: Together, options: BatchOptions, stats: BatchStats, seq_filter: SeqFilter):
        self._epoch = epoch
        self._together = together
        self._options = options
        self._stats = stats
        self._filter = seq_filter

    def _limits(self, by_key: Mapping[str, Optional[int]]) -> list[tuple[int, int]]:
        """Return the limits with the number of their keys."""
        return [(self._options.counted.index(key), limit) for key, limit in limits(by_key)]

    def plans(self) -> Iterator[tuple[list[int], list[tuple[int, ...]]]]:
        """Yield for each batch the positions of its sequences, and their lengths in the order of the counted keys."""
        options, stats = self._options, self._stats
        longest_seq = self._limits(options.max_seq_length)
        shortest_seq = [(key, limit) for key, limit in self._limits(options.min_seq_length) if limit]
        most = options.max_seqs or 0
        sized, packed, padding = (
            self._limits(by_key) for by_key in (options.batch_size, options.packed_batch_size, options.max_pad_size)
        )
        zeros = (0,) * len(options.counted)
        positions: list[int] = []
        chosen: list[tuple[int, ...]] = []
        longest, total = zeros, zeros
        for position, lengths in self._together.walk_lengths(options.counted):
            if longest_seq and any(lengths[key] > limit for key, limit in longest_seq):
                stats.num_too_long += 1
                continue
            if shortest_seq and any(lengths[key] < limit for key, limit in shortest_seq):
                stats.num_too_short += 1
                continue
            count = len(positions) + 1
            joined = tuple(map(max, longest, lengths))
            summed = tuple(map(int.__add__, total, lengths)) if packed or padding else zeros
            full = 0 < most < count
            for key, limit in sized:
                full = full or joined[key] * count > limit
                if lengths[key] > limit:
                    self._filter.report_oversize(self._slice(position, lengths))
                    break
            if packed or padding:
                full = full or any(summed[key] > limit for key, limit in packed)
                full = full or any(joined[key] * count - summed[key] > limit for key, limit in padding)
            stats.num_used += 1
            if full and positions:
                yield positions, chosen
                positions, chosen, joined, summed = [], [], lengths, lengths
            positions.append(position)
            chosen.append(lengths)
            longest, total = joined, summed
        if positions:
            yield positions, chosen

    def _slice(self, position: int, lengths: tuple[int, ...]) -> Slice:
        keys = self._options.counted
        return Slice(position, dict.fromkeys(keys, 0), dict(zip(keys, lengths)))

    def batch(
        self,
        positions: list[int],
        lengths: list[tuple[int, ...]],
        *,
        number: int,
        declared: Optional[Mapping[str, Declared]],
    ) -> Batch:
        """Read and pad the sequences of a plan.

        What is wrong with one of them is found out by `assemble`, which reads them one by one.
        """
        rows = [(row, 0) for row in range(len(positions))]
        plan = BatchPlan([], rows)
        feed: dict[str, NDArray[Any]] = {}
        keys, epoch = self._options.keys, self._epoch
        by_key = dict(zip(self._options.counted, zip(*lengths)))

        def places(part: int) -> tuple[str, int]:
            return epoch.place(positions[part], with_file=True), 0

        def one_by_one() -> Batch:
            parts = [self._slice(*part) for part in zip(positions, lengths)]
            return assemble(BatchPlan(parts, rows), epoch, keys, number=number, declared=declared)

        try:
            for key, cuts in self._together.data_of(positions).items():
                entries = padded(key, cuts, plan, epoch.specs[key].shape)
                if entries[key + "/size0"].tolist() != list(by_key[key]):
                    return one_by_one()
                feed.update(
                    declared[key].checked(key, entries, cuts, places) if declared and key in declared else entries
                )
        except Exception:
            return one_by_one()
        indices = self._together.indices(positions)
        zeros = [0] * len(positions)
        tags = epoch.dataset.tags_together(indices)
        return Batch(
            feed=with_tags(feed, plan, tags, declared),
            slices={key: list(zip(positions, zeros, by_key[key])) for key in keys},
            rows=rows,
            seq_tags=tags,
            seq_indices=indices,
            num_frames={key: sum(by_key[key]) for key in keys},
            number=number,
            complete=epoch.complete(positions[-1]),
        )
