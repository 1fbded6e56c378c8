"""Sequences and parts of sequences as seen by batches: positions and frame ranges, no data."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import shown
from returnn_tf.config.registry import of_rooms
from returnn_tf.datasets.core.batches.chunking import Chunking
from returnn_tf.datasets.core.epoch_reader import EpochReader, Slice
from returnn_tf.datasets.core.per_key import is_int, per_key


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
                raise ConfigError(
                    "option 'context_window' is %r; a pair must hold two dicts of data key -> frames, left and right"
                    % (value,)
                )
            left, right = (dict(side) for side in value)
            if not all(is_int(n) and n >= 0 for side in (left, right) for n in side.values()):
                raise ConfigError(
                    "option 'context_window': the numbers of frames in %r must be integers >= 0" % (value,)
                )
            return cls(left, right)
        widths = dict(value) if isinstance(value, Mapping) else {"data": value}
        if not all(is_int(width) and width > 0 for width in widths.values()):
            raise ConfigError("option 'context_window' is %r; a window has at least 1 frame" % (value,))
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
        self, epoch: EpochReader, keys: list[str], *, recurrent_net: bool, rng: random.Random
    ) -> Iterator[Slice]:
        """Yield all sequences of an epoch in its order, cut into chunks if requested, with their context.

        :param keys: the data keys to slice
        :param recurrent_net: False: no chunking, unless it is a function
        :param rng: for chunks of random size
        """
        chunking = self.chunking
        if chunking is not None and chunking.function is not None:
            parts = _function_slices(epoch, keys, chunking, recurrent_net)
        elif chunking is None or not recurrent_net:
            parts = epoch.whole_slices(keys)
        else:
            parts = _chunks(epoch, keys, chunking, rng)
        context = self.context
        return parts if context is None else (context.extend(part, keys) for part in parts)


def _chunks(epoch: EpochReader, keys: list[str], chunking: Chunking, rng: random.Random) -> Iterator[Slice]:
    for position, _, lengths in epoch.whole_slices(keys):
        try:
            for start, end in chunking.chunks(dict(zip(keys, lengths)), rng):
                yield position, tuple(start[key] for key in keys), tuple(end[key] for key in keys)
        except DataError as exc:
            raise DataError("%s: %s" % (epoch.place(position), exc)) from None


def _itself(epoch: Any) -> Any:
    return epoch


def _function_slices(epoch: EpochReader, keys: list[str], chunking: Chunking, recurrent_net: bool) -> Iterator[Slice]:
    """Iterate over the result of a user's chunking function.

    Its items are (position, start, end), with start and end as int or dict by key.
    """
    assert chunking.function is not None
    dataset = of_rooms("returnn_tf.epochs", _itself)(epoch)
    parts = chunking.function(dataset=dataset, seq_idx_start=0, recurrent_net=recurrent_net, used_data_keys=list(keys))
    if not isinstance(parts, Iterable):
        raise DataError("the chunking function must yield (position, start, end), but returns %s" % shown(parts))
    for part in parts:
        if not isinstance(part, (tuple, list)) or len(part) != 3 or not is_int(part[0]):
            raise DataError("the chunking function must yield (position, start, end), but yields %s" % shown(part))
        position, start, end = part
        if not epoch.has(position):
            raise DataError(
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
        raise DataError(
            "%s: the chunking function yields no frames for %s" % (epoch.place(position), ", ".join(missing))
        )
    return tuple(frame for frame in frames.values() if frame is not None)
