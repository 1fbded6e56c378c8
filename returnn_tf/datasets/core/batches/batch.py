"""A batch: its sequences and frames, and the padded arrays for the network."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import BatchDataError
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.epoch import Block, EpochReader, Slice
from returnn_tf.tensor import SEQ_TAG

Allocate = Callable[[tuple[int, ...], Any], NDArray[Any]]

_ALLOCATE: contextvars.ContextVar[Allocate] = contextvars.ContextVar("allocation of batches", default=np.zeros)


def new_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros."""
    return _ALLOCATE.get()(shape, dtype)


@contextlib.contextmanager
def allocating(allocate: Allocate) -> Iterator[None]:
    """Make `new_array` call this function in this thread within the context."""
    token = _ALLOCATE.set(allocate)
    try:
        yield
    finally:
        _ALLOCATE.reset(token)


class PlanEnd(NamedTuple):
    """Where planning goes on behind a batch, relative to its last sequence, where sequences are cut or counted.

    :param slices: of this sequence that are planned
    :param draws: random numbers drawn before it
    :param seqs: of the epoch up to it that count for ``max_total_num_seqs``
    """

    slices: int
    draws: int
    seqs: int


@dataclasses.dataclass
class BatchPlan:
    """The content of a batch, planned before data is read.

    :param parts: sequences, chunks or pieces of sequences in order
    :param places: for each part its row in the batch, ascending, and the frame of that row where it starts (same for
        all keys)
    :param is_whole: whether all parts are whole sequences
    :param end: where the next batch begins, beside its sequence; None: this is not tracked
    """

    parts: list[Slice] = dataclasses.field(default_factory=list)
    places: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    is_whole: bool = False
    end: Optional[PlanEnd] = None

    @property
    def num_rows(self) -> int:
        """Return the size of the batch axis."""
        return 1 + self.places[-1][0] if self.places else 0


@dataclasses.dataclass
class Batch:
    """One batch, batch axis first, ready for ``Network.run``.

    :param feed: key -> array [batch, time, ...], zero after the end of each row; key + "/size0" -> int32 [batch],
        frames by row; key + "/size<i>" likewise for another axis i (not counting batch) whose size differs. A key
        without time axis is [batch] or [batch, ...].
    :param slices: key -> list of (position in the epoch, first frame, frame after the last one), one per part
    :param rows: (row, first frame in the row) of each part. Sequence batches have one part per row, frame batches
        one row with all parts concatenated.
    :param seq_tags: tag of each part
    :param seq_indices: position in the corpus of each part
    :param num_frames: key -> true frames, without padding
    :param number: number of batches before it in this epoch
    :param complete: fraction of the epoch's sequences that is done with this batch, or None where that is
        unknown: for an endless dataset, and for a stream without an estimate
    :param resume: what ``Dataset.batches`` needs beside the position of its last sequence to go on behind this batch,
        as JSON; None: nothing
    """

    feed: dict[str, NDArray[Any]]
    slices: dict[str, list[tuple[int, int, int]]]
    rows: list[tuple[int, int]]
    seq_tags: list[str]
    seq_indices: list[int]
    num_frames: dict[str, int]
    number: int = 0
    complete: Optional[float] = None
    resume: Optional[dict[str, Any]] = None

    @property
    def num_rows(self) -> int:
        """Return the size of the batch axis."""
        return 1 + max(row for row, _ in self.rows) if self.rows else 0

    @property
    def num_seqs(self) -> int:
        """Return the number of different sequences in the batch."""
        return len({position for parts in self.slices.values() for position, _, _ in parts})

    @property
    def max_frames(self) -> dict[str, int]:
        """Return the frames of the longest row by key, i.e. the size of the padded time axis."""
        return {
            key: max([offset + end - start for (_, start, end), (_, offset) in zip(parts, self.rows)], default=0)
            for key, parts in self.slices.items()
        }


def assemble(
    plan: BatchPlan,
    epoch: EpochReader,
    options: BatchOptions,
    *,
    number: int,
    declared: Optional[Mapping[str, Declared]] = None,
) -> Batch:
    """Read the sequences of a plan and pad them.

    :param options: with the data keys to deliver
    :param declared: the declared format, by key
    :raises DataError: the data does not match it; names sequence, key and value
    """
    positions, first, last = map(list, zip(*plan.parts))
    starts, ends = (dict(zip(options.counted, zip(*frames))) for frames in (first, last))
    read = epoch.block(positions, options.keys)

    def places(part: int) -> tuple[str, int]:
        return epoch.place(positions[part], with_file=True), max(starts[key][part], 0)

    feed: dict[str, NDArray[Any]] = {}
    for key in options.keys:
        cuts = read.data[key]
        if not plan.is_whole:
            cuts = [_cut(*part) for part in zip(cuts, starts[key], ends[key])]
        entries = padded(key, cuts, plan, epoch.specs[key].shape if key in epoch.specs else ())
        feed.update(declared[key].checked(key, entries, cuts, places) if declared and key in declared else entries)
    for key in options.derived:
        feed.update(_derived(key, epoch, read, plan, declared.get(key) if declared else None))
    return Batch(
        feed=feed,
        slices={key: list(zip(positions, starts[key], ends[key])) for key in options.keys},
        rows=plan.places,
        seq_tags=read.tags,
        seq_indices=read.indices,
        num_frames={key: sum(ends[key]) - sum(starts[key]) for key in options.keys},
        number=number,
        complete=epoch.complete(positions[-1]),
    )


def _derived(
    key: str, epoch: EpochReader, read: Block, plan: BatchPlan, declared: Optional[Declared]
) -> dict[str, NDArray[Any]]:
    """Return the feed entry of one of `DERIVED_KEYS`, a value for each sequence or chunk: [batch].

    :raises DataError: it is not known, or does not match its declaration
    """
    positions = [position for position, _, _ in plan.parts]
    if plan.num_rows != len(positions):
        raise BatchDataError(
            "the network needs %s, one for each sequence, so sequences can't be joined frame by frame"
            % ("the names of the sequences" if key == SEQ_TAG else "the data key %r" % key)
        )
    if key == SEQ_TAG:
        value: NDArray[Any] = np.array(read.tags, object)
    elif key == "complete_frac":
        value = np.array([_fraction(epoch, position) for position in positions], np.float32)
    else:
        value = np.array(positions, np.int32)
    entries = {key: value}
    if declared is None:
        return entries
    return dict(
        declared.checked(
            key,
            entries,
            [np.asarray(each) for each in value],
            lambda part: (epoch.place(positions[part], with_file=True), 0),
        )
    )


def _fraction(epoch: EpochReader, position: int) -> float:
    found = epoch.complete(position)
    if found is None:
        raise BatchDataError(
            "%s: the network needs the data key 'complete_frac', but the number of sequences is not known; give the "
            "dataset estimated_num_seqs, or num_seqs if it is endless" % epoch.place(position)
        )
    return found


def _cut(value: NDArray[Any], start: int, end: int) -> NDArray[Any]:
    """Return frames start..end of one sequence, zero outside of it."""
    if value.ndim == 0:
        return value
    if not start and end == len(value):
        return value
    inner = value[max(start, 0) : max(end, 0)]
    before, after = min(max(-start, 0), end - start), max(end - max(start, len(value)), 0)
    if not before and not after:
        return inner
    widths = [(before, after)] + [(0, 0)] * (value.ndim - 1)
    return np.pad(inner, widths)


def padded(
    key: str, cuts: list[NDArray[Any]], plan: BatchPlan, static: Sequence[Optional[int]]
) -> dict[str, NDArray[Any]]:
    """Return the feed entries of one key.

    :param cuts: frames of each part, [time, ...] or []
    :param static: declared sizes of the axes after time; None = differs
    """
    if len({cut.ndim for cut in cuts}) != 1:
        raise BatchDataError("key %r has a different number of axes in the sequences of one batch" % key)
    if cuts[0].ndim == 0:
        if plan.num_rows != len(cuts):
            raise BatchDataError("key %r has no time axis, so sequences cannot be joined frame by frame" % key)
        return {key: np.stack(cuts)}
    num_rows = plan.num_rows
    if len(cuts) == num_rows:  # one part in each row, all from its first frame
        sizes = np.array([cut.shape for cut in cuts], np.int32)
    else:
        sizes = np.zeros((num_rows, cuts[0].ndim), np.int32)
        for cut, (row, offset) in zip(cuts, plan.places):
            sizes[row] = np.maximum(sizes[row], (offset + cut.shape[0],) + cut.shape[1:])
    shape = (num_rows,) + tuple(int(n) for n in sizes.max(axis=0))
    dtype = np.result_type(*{cut.dtype for cut in cuts}) if cuts[0].dtype.kind != "O" else cuts[0].dtype
    array = np.full(shape, "", dtype) if dtype.kind == "O" else new_array(shape, dtype)
    if len(cuts) == num_rows and not (sizes[:, 1:] != sizes[0, 1:]).any():
        for row, cut in zip(array, cuts):
            row[: len(cut)] = cut
        cuts = []
    for cut, (row, offset) in zip(cuts, plan.places):
        if cut.shape[1:] == shape[2:]:
            array[row, offset : offset + len(cut)] = cut
        else:
            array[(row, slice(offset, offset + len(cut)), *(slice(0, n) for n in cut.shape[1:]))] = cut
    feed = {key: array, key + "/size0": sizes[:, 0].copy()}
    for axis in range(1, sizes.shape[1]):
        dynamic = len(static) >= axis and static[axis - 1] is None
        if dynamic or (sizes[:, axis] != sizes[0, axis]).any():
            feed["%s/size%d" % (key, axis)] = sizes[:, axis].copy()
    return feed
