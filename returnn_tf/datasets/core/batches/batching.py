"""Grouping sequences, chunks or frames into batches: which are used, and where a batch ends."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.datasets.core.batches.batch import Batch, BatchPlan, PlanEnd, assemble
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.batches.slices import Cutting, Draws
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.epoch import EpochReader, Slice
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


def iterate_batches(
    epoch: EpochReader,
    options: BatchOptions,
    cutting: Cutting,
    *,
    rng: Draws,
    stats: BatchStats,
    start_batch: int = 0,
    start_seq: int = 0,
    resume: Optional[Mapping[str, Any]] = None,
    declared: Optional[Mapping[str, Declared]] = None,
) -> Iterator[Batch]:
    """Yield the batches of an epoch in its order.

    :param rng: for ``seq_drop`` and chunks of random size
    :param stats: updated in place
    :param start_batch: number of batches to skip without reading them
    :param start_seq: position after the sequences of these batches, if it is known: then these are not counted either,
        except where frames of several sequences are joined, or a function cuts them
    :param resume: of the last of these batches
    :param declared: the declared format, by key
    """
    is_chunked = cutting.chunking is not None
    tracks = is_chunked or options.seq_drop > 0 or options.max_total_num_seqs is not None
    given = (resume or {}).get("plan")
    done = PlanEnd(*given) if tracks and given else None
    by_itself = options.recurrent_net and (cutting.chunking is None or cutting.chunking.function is None)
    skipped = first = 0
    if start_seq and by_itself and (done is not None or not tracks):
        skipped, first = start_batch, start_seq - (done is not None)  # of the last sequence, slices may be left
        if first:
            epoch.jump(first, (resume or {}).get("epoch"))
        if done is not None:
            rng.skip(done.draws)
    else:
        done = None
        if start_batch:
            text = "%s, epoch %d: planning the %d batches before the next one again%s"
            why = (
                "" if by_itself else ", since a function or recurrent_net=False lets a sequence go on in other batches"
            )
            log.write(3, text % (epoch.dataset.described, epoch.epoch, start_batch, why))
    slices = cutting.slices(epoch, options.counted, recurrent_net=options.recurrent_net, rng=rng, start=first)
    planner = BatchPlanner(options, epoch, rng, stats, is_whole=cutting.is_none, is_chunked=is_chunked, tracks=tracks)
    for number, plan in enumerate(planner.plans(slices, done), skipped):
        last = plan.parts[-1][0]
        if number >= start_batch:
            batch = assemble(plan, epoch, options, number=number, declared=declared)
            if by_itself:
                batch.resume = _resume(epoch, plan, last)
            yield batch
        epoch.release(last)
    stats.num_broken = len(epoch.broken)
    epoch.report_broken(stats.num_seen + first)


def _resume(epoch: EpochReader, plan: BatchPlan, last: int) -> Optional[dict[str, Any]]:
    """Return what `iterate_batches` needs to go on behind a batch.

    :param last: position of its last sequence, which is read again if slices of it may be left
    """
    position = last - (plan.end is not None)
    of_epoch = epoch.resume(position) if position >= 0 else None
    found = {"plan": None if plan.end is None else list(plan.end), "epoch": of_epoch}
    return {name: value for name, value in found.items() if value is not None} or None


class BatchPlanner:
    """Groups the slices of an epoch into batches.

    Corpora of many short sequences spend more time on each sequence in Python than on reading. So lengths are tuples
    in the order of the counted keys, limits are given by the numbers of these keys, and no object is made for a slice.

    :param epoch: for names in messages
    :param rng: for ``seq_drop``
    :param stats: updated in place
    :param is_whole: whether all slices are whole sequences
    :param is_chunked: whether sequences are cut into chunks
    :param tracks: whether the plans have an end
    """

    def __init__(
        self,
        options: BatchOptions,
        epoch: EpochReader,
        rng: Draws,
        stats: BatchStats,
        *,
        is_whole: bool,
        is_chunked: bool,
        tracks: bool,
    ):
        self._options = options
        self._epoch = epoch
        self._rng = rng
        self._stats = stats
        self._is_whole = is_whole
        self._is_chunked = is_chunked
        self._tracks = tracks

    def plans(self, slices: Iterator[Slice], done: Optional[PlanEnd] = None) -> Iterator[BatchPlan]:
        """Yield the plan of each batch.

        :param slices: all sequences or chunks, in the order of the epoch
        :param done: end of an earlier plan, with whose last sequence the slices begin
        """
        return self._plan_rows(slices, done) if self._options.recurrent_net else self._plan_frames(slices)

    def _limits(self, by_key: Mapping[str, Optional[int]]) -> list[tuple[int, int]]:
        """Return the given limits, each with the number of its key."""
        return [(self._options.counted.index(key), limit) for key, limit in by_key.items() if limit is not None]

    def _plan_rows(self, slices: Iterator[Slice], done: Optional[PlanEnd]) -> Iterator[BatchPlan]:
        """Plan one row per sequence or chunk; a batch is closed before it would exceed a limit."""
        options, stats, is_whole, draw = self._options, self._stats, self._is_whole, self._rng.random
        too_long = self._limits(options.max_seq_length)
        too_short = [(key, limit) for key, limit in self._limits(options.min_seq_length) if limit]
        padded, packed = self._limits(options.batch_size), self._limits(options.packed_batch_size)
        padding, most, drop = self._limits(options.max_pad_size), options.max_seqs or 0, options.seq_drop
        by_length, share = options.max_seqs_by_length, options.max_pad_share
        sums = bool(packed or padding or share is not None)
        draws = bool(drop) or not is_whole  # for each chunk, whatever the probability: their sizes may be random, too
        end = _End(self._rng, options.max_total_num_seqs, self._is_chunked) if self._tracks else None
        zeros = (0,) * len(options.counted)
        parts: list[Slice] = []
        longest = total = zeros
        if done is not None and end is not None:
            for position, starts, ends in itertools.islice(slices, done.slices):
                end.see(position)
                frames = tuple(map(int.__sub__, ends, starts))
                is_used = not any(frames[key] > limit for key, limit in too_long)
                if draws and is_used and not any(frames[key] < limit for key, limit in too_short):
                    draw()
                end.set_total(position, done.seqs)
        for part in slices:
            position, starts, ends = part
            frames = ends if is_whole else tuple(map(int.__sub__, ends, starts))
            if end is not None:
                end.see(position)
            if too_long and any(frames[key] > limit for key, limit in too_long):
                stats.num_too_long += 1
            elif too_short and any(frames[key] < limit for key, limit in too_short):
                stats.num_too_short += 1
            elif draws and draw() < drop:
                stats.num_dropped += 1
            else:
                count = len(parts) + 1
                joined = tuple(map(max, longest, frames))
                full = 0 < most < count
                for key, limit in padded:
                    full = full or joined[key] * count > limit
                    if frames[key] > limit:
                        self._report_oversize(position, frames)
                        break
                stats.num_used += 1
                if end is not None and end.is_total(position):
                    break
                summed = tuple(map(int.__add__, total, frames)) if sums else zeros
                if sums:
                    full = full or any(summed[key] > limit for key, limit in packed)
                    full = full or any(joined[key] * count - summed[key] > limit for key, limit in padding)
                    if share is not None:
                        padded_frames = count * sum(joined)
                        full = full or padded_frames - sum(summed) > share * padded_frames
                if by_length:
                    full = full or count > self._most_by_length(joined)
                if full and parts:
                    yield self._rows(parts, end)
                    parts, joined, summed = [], frames, frames
                parts.append(part)
                if end is not None:
                    end.use()
                longest, total = joined, summed
                continue
            if not parts:
                self._epoch.release(position)  # so that a long run of unused sequences is not kept
        if parts:
            yield self._rows(parts, end)

    def _most_by_length(self, longest: Sequence[int]) -> int:
        """Return how many sequences a batch may have by the length of the longest one, in the keys that are read.

        :param longest: frames of the longest sequence by counted key
        """
        options = self._options
        frames = max(size for key, size in zip(options.counted, longest) if key in options.keys)
        place = bisect.bisect_left(options.max_seqs_by_length, (frames, 0))
        return options.max_seqs_by_length[place][1] if place < len(options.max_seqs_by_length) else 1

    def _rows(self, parts: list[Slice], end: Optional[_End]) -> BatchPlan:
        places = [(row, 0) for row in range(len(parts))]
        return BatchPlan(parts, places, is_whole=self._is_whole, end=None if end is None else end.of_used)

    def _report_oversize(self, position: int, frames: Sequence[int]) -> None:
        """Report a sequence that exceeds the limits and becomes a separate batch.

        Logged once per epoch, counted for the summary.
        """
        self._stats.num_oversize += 1
        if self._stats.num_oversize == 1:
            log.warn(
                "%s has %s frames, more than batch_size %s. It becomes a separate batch, as will others like it. "
                "Raise batch_size, cut with chunking, or drop such sequences with max_seq_length."
                % (
                    self._epoch.place(position),
                    _short(dict(zip(self._options.counted, frames))),
                    _short({key: limit for key, limit in self._options.batch_size.items() if limit is not None}),
                )
            )

    def _plan_frames(self, slices: Iterable[Slice]) -> Iterator[BatchPlan]:
        """Plan all frames in one row; a sequence that does not fit is split and continues in the next batch."""
        sizes = dict(self._limits(self._options.batch_size))
        most = self._options.max_seqs
        zeros = (0,) * len(self._options.counted)
        plan, filled = BatchPlan(), zeros
        for position, starts, ends in slices:
            self._stats.num_used += 1
            while any(start < end for start, end in zip(starts, ends)):
                stops = tuple(
                    min(end, start + sizes[key] - filled[key]) if key in sizes else end
                    for key, (start, end) in enumerate(zip(starts, ends))
                )
                offset = max(filled)  # the same for all keys, so that they start together
                plan.places.append((0, offset))
                plan.parts.append((position, starts, stops))
                filled = tuple(offset + stop - start for start, stop in zip(starts, stops))
                starts = stops
                full = any(filled[key] >= size for key, size in sizes.items())
                if full or (most is not None and position - plan.parts[0][0] + 1 > most):
                    yield plan
                    plan, filled = BatchPlan(), zeros
        if plan.parts:
            yield plan


class _End:
    """Tracks the end of the plans: slices, random numbers, and the sequences that ``max_total_num_seqs`` counts.

    As in the reference, sequence n + 1 of this limit (or its first chunk) is the last.
    """

    def __init__(self, rng: Draws, limit: Optional[int], is_chunked: bool):
        self._rng = rng
        self._limit = limit
        self._is_chunked = is_chunked  # then what cuts the sequences tells the generator where they begin
        self._position: Optional[int] = None
        self._num_slices = 0
        self._counted: Optional[int] = None
        self._num_counted = 0
        self.of_used = PlanEnd(0, 0, 0)  #: behind the last slice that is used

    def see(self, position: int) -> None:
        """Note a slice of the sequence at this position, before a number is drawn for it."""
        if position != self._position:
            self._position, self._num_slices = position, 0
            if not self._is_chunked:
                self._rng.begin_sequence()
        self._num_slices += 1

    def set_total(self, position: int, seqs: int) -> None:
        """Set the number of sequences that are counted, up to the one at this position."""
        self._counted, self._num_counted = position, seqs

    def is_total(self, position: int) -> bool:
        """Return whether the limit is used up before a slice of the sequence at this position."""
        if self._limit is None:
            return False
        if self._num_counted > self._limit:
            return True
        if position != self._counted:
            self.set_total(position, self._num_counted + 1)
        return False

    def use(self) -> None:
        """Note that the slice seen last is used."""
        self.of_used = PlanEnd(self._num_slices, self._rng.before, self._num_counted)


def _short(values: dict[str, int]) -> str:
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    return ", ".join("%s %d" % (key, value) for key, value in values.items())
