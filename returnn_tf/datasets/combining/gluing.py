"""How the parts of a glued sequence are cut or prolonged, and the epochs of glued sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.epoch import Epoch
from returnn_tf.datasets.core.epoch_reader import EpochReader
from returnn_tf.datasets.core.per_key import is_int

_NAMES = (
    "remove_in_between_postfix",
    "repeat_in_between_last_frame_up_to_multiple_of",
    "pad_narrow_data_to_multiple_of_target_len",
)


@dataclasses.dataclass(frozen=True)
class Gluing:
    """What happens to each part but the last, in this order.

    :param removed: data key -> label at its end, which is removed
    :param multiples: data key -> n; the last frame is repeated up to a multiple of n
    :param targets: data key -> (target, n); it gets n times the length that the target had
    """

    removed: Mapping[str, int]
    multiples: Mapping[str, int]
    targets: Mapping[str, tuple[str, int]]

    @classmethod
    def make(cls, removed: Any, multiples: Any, targets: Any, *, owner: str) -> Gluing:
        """Check the three options; ConfigError beginning with the owner for values of another form."""
        for name, option in zip(_NAMES, (removed, multiples)):
            for key, value in (option or {}).items():
                if not is_int(value) or value < (0 if name == _NAMES[0] else 1):
                    raise ConfigError("%s: option %r: %r: %r must be a positive integer" % (owner, name, key, value))
        for key, value in (targets or {}).items():
            fits = isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str)
            if not fits or not is_int(value[1]) or value[1] < 1:
                raise ConfigError(
                    "%s: option %r: %r: %r must be (target, positive integer)" % (owner, _NAMES[2], key, value)
                )
        pairs = {key: (value[0], int(value[1])) for key, value in (targets or {}).items()}
        return cls(dict(removed or {}), dict(multiples or {}), pairs)

    def named_keys(self) -> Iterator[tuple[str, str]]:
        """Yield each option with each data key that it names."""
        for name, keys in zip(_NAMES, (self.removed, self.multiples, self.targets)):
            for key in keys:
                yield name, key
        for target, _ in self.targets.values():
            yield _NAMES[2], target

    def needed_keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys to read for those that are wanted."""
        return sorted({*keys, *(self.targets[key][0] for key in keys if key in self.targets)})

    def new_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths by key of a part that is not the last one.

        The length of a target is the one that it has in the inner dataset, as in RETURNN.
        """
        new = {key: length - 1 if key in self.removed else length for key, length in lengths.items()}
        for key, multiple in self.multiples.items():
            if key in new:
                new[key] += -new[key] % multiple
        wanted = {key: lengths[target] * n for key, (target, n) in self.targets.items() if {key, target} <= set(new)}
        return {**new, **wanted}

    def changed(self, data: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the data of a part that is not the last one.

        :raises DataError: it does not end with the label to be removed, or has no frame to repeat
        """
        data = {key: self._without_postfix(key, value) for key, value in data.items()}
        lengths = {key: len(value) + (key in self.removed) for key, value in data.items() if value.ndim}
        new = self.new_lengths(lengths)
        return {key: value if not value.ndim else _resized(key, value, new[key]) for key, value in data.items()}

    def _without_postfix(self, key: str, value: NDArray[Any]) -> NDArray[Any]:
        if key not in self.removed:
            return value
        label = self.removed[key]
        if not value.ndim or not len(value) or np.any(value[-1] != label):
            raise DataError(
                "key %r should end with %r (remove_in_between_postfix), but %s"
                % (key, label, "ends with %s" % value[-1] if value.ndim and len(value) else "has no frames")
            )
        return value[:-1]


class GluedEpoch(Epoch):
    """The sequences of an inner epoch, several of them glued to one.

    :param order: indices of the glued sequences in the order of reading
    :param reader: the inner epoch, which it closes; all parts one after the other
    :param parts: tags of the parts, for each sequence of the order
    """

    def __init__(
        self,
        dataset: Any,
        epoch: int,
        order: NDArray[Any],
        keys: list[str],
        reader: EpochReader,
        parts: Sequence[Sequence[str]],
        gluing: Gluing,
    ):
        super().__init__(dataset, epoch, order, keys)
        self._reader = reader
        self._parts = parts
        self._gluing = gluing
        self._starts = [0, *np.cumsum([len(tags) for tags in parts]).tolist()]

    def _inner(self, position: int) -> range:
        """Return the positions of the parts in the inner epoch."""
        for inner, tag in zip(range(self._starts[position], self._starts[position + 1]), self._parts[position]):
            found = self._reader.tag(inner) if self._reader.has(inner) else None
            if found != tag:
                raise DataError(
                    "%s: the inner dataset %s instead of %r"
                    % (self.place(position), "ends" if found is None else "delivers %r" % found, tag)
                )
        return range(self._starts[position], self._starts[position + 1])

    def file(self, position: int) -> str:
        """Return the file of the first part."""
        return self._reader.file(self._starts[position])

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key."""
        *before, last = (self._reader.lengths(inner) for inner in self._inner(position))
        parts = [*(self._gluing.new_lengths(lengths) for lengths in before), last]
        texts = [key for key in self.keys if self.dataset.data_specs[key].ndim == 0]
        return {key: 1 if key in texts else sum(part[key] for part in parts) for key in self.keys}

    def _read(self, position: int) -> Example:
        try:
            *before, last = (self._reader.sequence(inner).data for inner in self._inner(position))
            parts = [*(self._gluing.changed(data) for data in before), last]
            data = {key: _glued(key, [part[key] for part in parts]) for key in self.keys}
        except DataError as exc:
            raise DataError("%s: %s" % (self.place(position), exc)) from None
        return self._made_of(position, data)

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        super().release(position)
        self._reader.release(self._starts[min(position, len(self._starts) - 1)])

    def close(self) -> None:
        """Close the inner epoch."""
        self._reader.close()


def _resized(key: str, value: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the frames cut to a length, or with the last one repeated."""
    if length <= len(value):
        return value[:length]
    if not len(value):
        raise DataError("key %r has no frame which could be repeated up to %d frames" % (key, length))
    return np.concatenate([value, np.repeat(value[-1:], length - len(value), axis=0)])


def _glued(key: str, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the parts as one array; texts without a time axis are joined by blanks."""
    if len(values) == 1:
        return values[0]
    if values[0].ndim:
        return np.concatenate(values)
    if values[0].dtype.kind not in "OSU":
        raise DataError("key %r has no time axis, so its values can't be glued" % key)
    joined: Optional[NDArray[Any]] = np.array(" ".join(str(value) for value in values), dtype=values[0].dtype.kind)
    assert joined is not None
    return joined
