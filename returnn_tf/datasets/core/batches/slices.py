"""Sequences and parts of sequences as seen by batches: positions and frame ranges, no data."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from returnn_tf.config.errors import BatchDataError, BatchError, DataError, shown
from returnn_tf.config.registry import of_rooms
from returnn_tf.datasets.core.epoch import EpochReader, Slice
from returnn_tf.datasets.core.per_key import IntOrDict, is_int, per_key, reference_key

Chunk = tuple[dict[str, int], dict[str, int]]  # first frame and frame after the last one, by key
_FORMS = "'size:step', a size, (size, step), {key: size}, ({key: size}, {key: step}) or a function"


class Draws(random.Random):
    """Random numbers in [0, 1), which are counted, so that any later one can be drawn next.

    :param seed: of the generator
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.count = 0
        #: the count before the current sequence
        self.before = 0

    def random(self) -> float:
        """Draw a number."""
        self.count += 1
        return super().random()

    def begin_sequence(self) -> None:
        """Note that what is drawn next is for another sequence."""
        self.before = self.count

    def skip(self, count: int) -> None:
        """Pass over numbers, at 10 ns each."""
        self.count += count
        for start in range(0, count, _SKIPPED):
            self.getrandbits(64 * min(_SKIPPED, count - start))  # a number is made of 2 * 32 bits


_SKIPPED = 1 << 16


@dataclasses.dataclass(frozen=True)
class Chunking:
    """The sizes and steps of chunks.

    :param size: frames of a chunk, for all keys or by key
    :param step: frames between the starts of two chunks, likewise; 0 for one key of several: that key does not move
    :param min_chunk_size: no further chunk if a key has at most this number of frames left
    :param variance: v in [0, 1): sizes and steps are multiplied by 1 - u * v, u uniform in [0, 1), per sequence
    :param function: the user's generator of (position, start, end) instead of all this
    """

    size: IntOrDict = 0
    step: IntOrDict = 0
    min_chunk_size: IntOrDict = 0
    variance: float = 0.0
    function: Optional[Callable[..., Any]] = None

    @classmethod
    def parse(cls, value: Any, *, min_chunk_size: IntOrDict = 0, variance: float = 0.0) -> Optional[Chunking]:
        """Parse the option; None if there is no chunking (None, 0, "0", "")."""
        if not 0.0 <= variance < 1.0:
            raise BatchError("option 'chunking_variance' is %r, but must be >= 0 and < 1" % (variance,))
        if callable(value):
            return cls(function=value)
        size, step = _size_and_step(value)
        for number in list(_values(size)) + list(_values(step)) + list(_values(min_chunk_size)):
            if not is_int(number) or number < 0:
                raise BatchError("option 'chunking' is %r; sizes and steps must be integers >= 0" % (value,))
        if not any(_values(size)):
            if any(_values(step)):
                raise BatchError("option 'chunking' is %r: chunks of 0 frames. Write '0' to cut nothing" % (value,))
            return None
        if not isinstance(step, Mapping) and step == 0:
            step = size
        return cls(size, step, min_chunk_size, variance)

    def chunks(self, lengths: dict[str, int], rng: Draws) -> Iterator[Chunk]:
        """Yield the chunks of one sequence, at least one.

        :param lengths: key -> frames of the sequence, for the keys to chunk
        :raises DataError: the lengths are inconsistent
        """
        sizes, steps = self._sizes_and_steps(lengths, rng)
        if not any(steps.values()):
            raise BatchDataError("all of the used keys %s have chunk step 0" % ", ".join(sorted(lengths)))
        reference = reference_key(lengths)
        if steps[reference] == 0:
            reference = next(key for key in sorted(lengths) if steps[key] > 0)
        min_sizes = {key: n or 0 for key, n in per_key(self.min_chunk_size, lengths, option="min_chunk_size").items()}
        whole = self._keys_in_full(lengths, sizes, steps, min_sizes, reference)
        start = dict.fromkeys(lengths, 0)
        while True:
            end = {key: min(start[key] + sizes[key], length) for key, length in lengths.items()}
            yield (
                {key: 0 if key in whole else frame for key, frame in start.items()},
                {key: lengths[key] if key in whole else frame for key, frame in end.items()},
            )
            start = {key: frame + steps[key] for key, frame in start.items()}
            if start[reference] >= lengths[reference]:
                return
            if any(length - start[key] <= min_sizes[key] for key, length in lengths.items()):
                return

    def _keys_in_full(
        self,
        lengths: dict[str, int],
        sizes: dict[str, int],
        steps: dict[str, int],
        min_sizes: dict[str, int],
        reference: str,
    ) -> list[str]:
        """Return the keys that every chunk gets in full; all others must have as many chunks as the reference key."""
        whole = []
        for key, length in lengths.items():
            if steps[key] == steps[reference] and length == lengths[reference] and sizes[key] > 0:
                continue
            if length <= 1 or sizes[key] == 0:
                whole.append(key)
                continue
            if steps[key] == steps[reference]:
                raise BatchDataError(
                    "chunking with step %d for the keys %r and %r, with %d and %d frames. Give sizes and steps "
                    "by key, e.g. chunking = ({%r: 100, %r: 25}, {%r: 50, %r: 12}); if the labels are not aligned with "
                    "the frames (ctc, decoders), do without chunking"
                    % (steps[key], reference, key, lengths[reference], length, reference, key, reference, key)
                )
            if steps[key] == 0:
                raise BatchDataError(
                    "chunk step 0 for key %r of %d frames; only a key of 1 frame can stand still" % (key, length)
                )
            numbers = [max((lengths[k] - (min_sizes[k] or 1)) // steps[k] + 1, 1) for k in (reference, key)]
            if numbers[0] != numbers[1]:
                raise BatchDataError(
                    "chunking gives %d chunks of key %r (%d frames) but %d chunks of key %r (%d frames); make sizes "
                    "and steps proportional to the lengths"
                    % (numbers[0], reference, lengths[reference], numbers[1], key, length)
                )
        return whole

    def _sizes_and_steps(self, lengths: dict[str, int], rng: Draws) -> tuple[dict[str, int], dict[str, int]]:
        """Return sizes and steps by key for this sequence. A key without size must have a single frame."""
        given_sizes = per_key(self.size, lengths, option="chunking")
        given_steps = per_key(self.step, lengths, option="chunking")
        sizes, steps = {}, {}
        for key, length in lengths.items():
            size, step = given_sizes[key], given_steps[key]
            if size is None:
                if length > 1:
                    raise BatchDataError("chunking gives no size for key %r, which has %d frames" % (key, length))
                size, step = 0, 0
            sizes[key], steps[key] = size, size if step is None else step
        if not self.variance:
            return sizes, steps
        factor = 1.0 - rng.random() * self.variance
        return _scaled(sizes, steps, factor)


def _scaled(sizes: dict[str, int], steps: dict[str, int], factor: float) -> tuple[dict[str, int], dict[str, int]]:
    """Scale the key with the smallest step, and the others such that their ratio to it stays."""
    moving = [key for key in sizes if steps[key] > 0]
    if not moving:
        return sizes, steps
    base = min(moving, key=lambda key: (steps[key], key))
    new_size, new_step = max(int(sizes[base] * factor), 1), max(int(steps[base] * factor), 1)
    out_sizes, out_steps = dict(sizes), dict(steps)
    for key in moving:
        out_sizes[key] = max(new_size * sizes[key] // sizes[base], 1) if sizes[base] else sizes[key]
        out_steps[key] = max(new_step * steps[key] // steps[base], 1)
    return out_sizes, out_steps


def _values(value: IntOrDict) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else [value]


def _size_and_step(value: Any) -> tuple[Any, Any]:
    """Return size and step as given; step 0 means the size."""
    if value is None or value == "":
        return 0, 0
    if isinstance(value, str):
        parts = value.split(":")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2):
            raise BatchError("option 'chunking' is %r, but must be %s" % (value, _FORMS))
        return numbers[0], numbers[1] if len(numbers) == 2 else 0
    if isinstance(value, (tuple, list)) and len(value) == 2:
        size, step = value
        if isinstance(step, Mapping) and not isinstance(size, Mapping):
            raise BatchError("option 'chunking' is %r: with steps by key, the sizes must be a dict, too" % (value,))
        return size, 0 if step is None else step
    if is_int(value) or isinstance(value, Mapping):
        return value, 0
    raise BatchError("option 'chunking' is %r, but must be %s" % (value, _FORMS))


@dataclasses.dataclass(frozen=True)
class ContextWindow:
    """Additional frames at both ends of every sequence or chunk, by key.

    :param left: key -> frames before the first one
    :param right: key -> frames after the last one
    """

    left: Mapping[str, int]
    right: Mapping[str, int]

    @classmethod
    def parse(cls, value: Any) -> Optional[ContextWindow]:
        """Parse the option: window width for key "data", dict key -> width, or a pair of dicts (left, right).

        A window of w frames has (w - 1) // 2 frames to the left of the current one, the rest to the right.
        """
        if value is None:
            return None
        if isinstance(value, (tuple, list)):
            if len(value) != 2 or not all(isinstance(side, Mapping) for side in value):
                raise BatchError(
                    "option 'context_window' is %r; a pair must hold two dicts of data key -> frames, left and right"
                    % (value,)
                )
            left, right = (dict(side) for side in value)
            if not all(is_int(n) and n >= 0 for side in (left, right) for n in side.values()):
                raise BatchError(
                    "option 'context_window': the numbers of frames in %r must be integers >= 0" % (value,)
                )
            return cls(left, right)
        widths = dict(value) if isinstance(value, Mapping) else {"data": value}
        if not all(is_int(width) and width > 0 for width in widths.values()):
            raise BatchError("option 'context_window' is %r; a window has at least 1 frame" % (value,))
        return cls(
            {key: (width - 1) // 2 for key, width in widths.items()},
            {key: width - 1 - (width - 1) // 2 for key, width in widths.items()},
        )

    def extend(self, part: Slice, keys: Sequence[str]) -> Slice:
        """Return the slice extended by the context frames."""
        position, starts, ends = part
        return (
            position,
            tuple(start - self.left.get(key, 0) for key, start in zip(keys, starts)),
            tuple(end + self.right.get(key, 0) for key, end in zip(keys, ends)),
        )


@dataclasses.dataclass(frozen=True)
class Cutting:
    """How the sequences of an epoch are cut.

    :param chunking: None: not into chunks
    :param context: additional frames of each slice
    """

    chunking: Optional[Chunking]
    context: Optional[ContextWindow]

    @classmethod
    def parse(cls, *, chunking: Any, min_chunk_size: Any, chunking_variance: Any, context_window: Any) -> Cutting:
        """Parse the options of these names."""
        return cls(
            Chunking.parse(chunking, min_chunk_size=min_chunk_size or 0, variance=chunking_variance or 0.0),
            ContextWindow.parse(context_window),
        )

    @property
    def is_none(self) -> bool:
        """Return whether each slice is a whole sequence."""
        return self.chunking is None and self.context is None

    def slices(
        self, epoch: EpochReader, keys: list[str], *, recurrent_net: bool, rng: Draws, start: int = 0
    ) -> Iterator[Slice]:
        """Yield all sequences of an epoch in its order, cut into chunks if requested, with their context.

        :param keys: the data keys to slice
        :param recurrent_net: False: no chunking, unless it is a function
        :param rng: for chunks of random size
        :param start: position of the first sequence, unless a function cuts them
        """
        chunking = self.chunking
        if chunking is not None and chunking.function is not None:
            parts = _function_slices(epoch, keys, chunking, recurrent_net)
        elif chunking is None or not recurrent_net:
            parts = epoch.whole_slices(keys, start)
        else:
            parts = _chunks(epoch, keys, chunking, rng, start)
        context = self.context
        return parts if context is None else (context.extend(part, keys) for part in parts)


def _chunks(epoch: EpochReader, keys: list[str], chunking: Chunking, rng: Draws, start: int) -> Iterator[Slice]:
    for position, _, lengths in epoch.whole_slices(keys, start):
        rng.begin_sequence()
        try:
            for first, end in chunking.chunks(dict(zip(keys, lengths)), rng):
                yield position, tuple(first[key] for key in keys), tuple(end[key] for key in keys)
        except DataError as exc:
            raise BatchDataError("%s: %s" % (epoch.place(position), exc)) from None


def _itself(epoch: Any) -> Any:
    return epoch


def _function_slices(epoch: EpochReader, keys: list[str], chunking: Chunking, recurrent_net: bool) -> Iterator[Slice]:
    """Yield the result of a user's chunking function.

    Its items are (position, start, end), with start and end as int or dict by key.
    """
    assert chunking.function is not None
    dataset = of_rooms("returnn_tf.epochs", _itself)(epoch)
    parts = chunking.function(dataset=dataset, seq_idx_start=0, recurrent_net=recurrent_net, used_data_keys=list(keys))
    if not isinstance(parts, Iterable):
        raise BatchDataError("the chunking function must yield (position, start, end), but returns %s" % shown(parts))
    for part in parts:
        if not isinstance(part, (tuple, list)) or len(part) != 3 or not is_int(part[0]):
            raise BatchDataError("the chunking function must yield (position, start, end), but yields %s" % shown(part))
        position, start, end = part
        if not epoch.has(position):
            raise BatchDataError(
                "the chunking function yields position %r, but there are %s sequences" % (position, epoch.num_seqs)
            )
        if not epoch.is_usable(position):
            continue
        starts, ends = _frames(epoch, position, keys, start), _frames(epoch, position, keys, end)
        yield int(position), starts, ends


def _frames(epoch: EpochReader, position: int, keys: list[str], value: Any) -> tuple[int, ...]:
    frames = per_key(value, keys, option="chunking")
    missing = [key for key, frame in frames.items() if frame is None]
    if missing:
        raise BatchDataError(
            "%s: the chunking function yields no frames for %s" % (epoch.place(position), ", ".join(missing))
        )
    return tuple(frame for frame in frames.values() if frame is not None)
