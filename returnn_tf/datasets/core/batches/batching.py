"""Grouping sequences, chunks or frames into batches."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from returnn_tf.datasets.core.batches.batch import BatchPlan
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.batches.slices import Slice
from returnn_tf.logging.log import log


@dataclasses.dataclass
class BatchStats:
    """Counts of used, dropped and oversized sequences and chunks of an epoch."""

    num_used: int = 0
    num_too_long: int = 0
    num_too_short: int = 0
    num_dropped: int = 0
    num_oversize: int = 0
    num_broken: int = 0

    @property
    def num_seen(self) -> int:
        """Return the number of those that could be read."""
        return self.num_used + self.num_too_long + self.num_too_short + self.num_dropped

    def summary(self) -> str:
        """Return one line for the log; empty if nothing was dropped or oversized."""
        texts = [
            (self.num_too_long, "%d dropped as too long"),
            (self.num_too_short, "%d dropped as too short"),
            (self.num_dropped, "%d dropped at random"),
            (self.num_broken, "%d left out as they could not be read"),
            (self.num_oversize, "%d larger than batch_size by themselves"),
        ]
        return ", ".join(text % count for count, text in texts if count)


def plan_batches(
    slices: Iterable[Slice], options: BatchOptions, *, epoch: Any, rng: random.Random, stats: BatchStats
) -> Iterator[BatchPlan]:
    """Plan the batches of an epoch in its order.

    :param slices: all sequences or chunks
    :param epoch: ``datasets.epoch.Epoch``, for names in messages
    :param rng: for ``seq_drop``
    :param stats: updated in place
    """
    if options.recurrent_net:
        yield from _plan_sequences(slices, options, epoch=epoch, rng=rng, stats=stats)
    else:
        yield from _plan_frames(slices, options, stats=stats)


class SeqFilter:
    """Decides which sequences or chunks are used at all."""

    def __init__(self, options: BatchOptions, *, epoch: Any, rng: random.Random, stats: BatchStats):
        self.options, self.epoch, self.rng, self.stats = options, epoch, rng, stats
        self._longest, self._largest = limits(options.max_seq_length), limits(options.batch_size)
        self._shortest = [(key, limit) for key, limit in limits(options.min_seq_length) if limit]
        self._last_position: Optional[int] = None
        self._num_seqs = 0

    def use(self, part: Slice, frames: dict[str, int]) -> bool:
        """Return False for sequences that are too long, too short or dropped at random.

        :param frames: of the part, by key
        """
        if exceeds(frames, self._longest):
            self.stats.num_too_long += 1
            return False
        if self._shortest and any(frames[key] < limit for key, limit in self._shortest):
            self.stats.num_too_short += 1
            return False
        if self.rng.random() < self.options.seq_drop:  # one draw each, whatever the probability
            self.stats.num_dropped += 1
            return False
        if exceeds(frames, self._largest):
            self.report_oversize(part)
        self.stats.num_used += 1
        return True

    def is_end(self, part: Slice) -> bool:
        """Return whether ``max_total_num_seqs`` is used up.

        As in the reference, sequence n + 1 (or its first chunk) is the last.
        """
        limit = self.options.max_total_num_seqs
        if limit is not None and self._num_seqs > limit:
            return True
        if part.position != self._last_position:
            self._last_position = part.position
            self._num_seqs += 1
        return False

    def report_oversize(self, part: Slice) -> None:
        """Report a sequence that exceeds the limits and makes a batch of its own.

        Logged once per epoch, counted for the summary.
        """
        self.stats.num_oversize += 1
        if self.stats.num_oversize == 1:
            log.warn(
                "%s has %s frames, more than batch_size %s. It becomes a separate batch, as will others like it. "
                "Raise batch_size, cut with chunking, or drop such sequences with max_seq_length."
                % (
                    self.epoch.place(part.position),
                    _short(part.num_frames),
                    _short({key: limit for key, limit in self.options.batch_size.items() if limit is not None}),
                )
            )


def _plan_sequences(
    slices: Iterable[Slice], options: BatchOptions, *, epoch: Any, rng: random.Random, stats: BatchStats
) -> Iterator[BatchPlan]:
    """Plan one row per sequence or chunk; a batch is closed before it would exceed a limit."""
    accept = SeqFilter(options, epoch=epoch, rng=rng, stats=stats)
    keys = options.counted
    plan = BatchPlan()
    is_over = _Full(options)
    longest, total = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    for part in slices:
        frames = part.num_frames
        if not accept.use(part, frames):
            if not plan.parts:
                epoch.release(part.position)  # so that a long run of unused sequences is not kept
            continue
        if accept.is_end(part):
            break
        count = len(plan.parts) + 1
        new_longest = {key: frames[key] if frames[key] > longest[key] else longest[key] for key in keys}
        new_total = {key: total[key] + frames[key] for key in keys}
        if plan.parts and is_over(count, new_longest, new_total):
            yield plan
            plan, new_longest, new_total = BatchPlan(), frames, dict(frames)
        plan.places.append((len(plan.parts), 0))
        plan.parts.append(part)
        longest, total = new_longest, new_total
    if plan.parts:
        yield plan


class _Full:
    """Tells whether a batch would exceed a limit."""

    def __init__(self, options: BatchOptions):
        self._padded, self._packed = limits(options.batch_size), limits(options.packed_batch_size)
        self._padding, self._max_seqs = limits(options.max_pad_size), options.max_seqs

    def __call__(self, count: int, longest: dict[str, int], total: dict[str, int]) -> bool:
        """Return whether a batch of ``count`` rows would exceed a limit.

        :param longest: frames of the longest row by key
        :param total: frames of all rows by key
        """
        if self._max_seqs is not None and count > self._max_seqs:
            return True
        for key, limit in self._padded:
            if longest[key] * count > limit:
                return True
        for key, limit in self._padding:
            if longest[key] * count - total[key] > limit:
                return True
        return exceeds(total, self._packed)


def _plan_frames(slices: Iterable[Slice], options: BatchOptions, *, stats: BatchStats) -> Iterator[BatchPlan]:
    """Plan all frames in one row; a sequence that does not fit is split and continues in the next batch."""
    sizes = dict(limits(options.batch_size))
    plan = BatchPlan()
    filled = dict.fromkeys(options.keys, 0)
    for part in slices:
        stats.num_used += 1
        start = dict(part.start)
        while any(start[key] < part.end[key] for key in options.keys):
            end = {
                key: min(part.end[key], start[key] + sizes[key] - filled[key]) if key in sizes else part.end[key]
                for key in options.keys
            }
            offset = max(filled.values())  # the same for all keys, so that they start together
            plan.places.append((0, offset))
            plan.parts.append(Slice(part.position, start, end))
            filled = {key: offset + end[key] - start[key] for key in options.keys}
            start = end
            span = part.position - plan.parts[0].position + 1
            full = any(filled[key] >= size for key, size in sizes.items())
            if full or (options.max_seqs is not None and span > options.max_seqs):
                yield plan
                plan, filled = BatchPlan(), dict.fromkeys(options.keys, 0)
    if plan.parts:
        yield plan


Limits = list[tuple[str, int]]


def limits(by_key: Mapping[str, Optional[int]]) -> Limits:
    """Return the limits that there are, with their keys."""
    return [(key, limit) for key, limit in by_key.items() if limit is not None]


def exceeds(values: Mapping[str, int], limits: Limits) -> bool:
    """Return whether any value exceeds its limit."""
    for key, limit in limits:  # noqa: SIM110 (a generator takes much longer, and this runs for every sequence)
        if values[key] > limit:
            return True
    return False


def _short(values: dict[str, int]) -> str:
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    return ", ".join("%s %d" % (key, value) for key, value in values.items())
