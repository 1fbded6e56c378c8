"""ConcatSeqsDataset: several sequences of another dataset glued to one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.combining.base import CombiningDataset, FormatOfInner, inner_dataset, takes_tags
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.epoch import Epoch, EpochReader
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.per_key import is_int
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.seq_order import occurrences
from returnn_tf.datasets.core.share import ALL, Chosen

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
        for name, given in zip(_NAMES, (removed, multiples)):
            for key, value in (given or {}).items():
                if not is_int(value) or value < (0 if name == _NAMES[0] else 1):
                    raise DatasetError("%s: option %r: %r: %r must be a positive integer" % (owner, name, key, value))
        for key, value in (targets or {}).items():
            fits = isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str)
            if not fits or not is_int(value[1]) or value[1] < 1:
                raise DatasetError(
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
            raise DatasetDataError(
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
                raise DatasetDataError(
                    "%s: the inner dataset %s instead of %r"
                    % (self.place(position), "ends" if found is None else "delivers %r" % found, tag)
                )
        return range(self._starts[position], self._starts[position + 1])

    def resume(self, position: int) -> Any:
        """Return what the inner epoch needs to go on behind the last part."""
        return self._reader.resume(self._starts[position + 1] - 1)

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the parts of the sequences before a position."""
        self._reader.jump(self._starts[min(position, len(self._starts) - 1)], resume)

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
            data = {key: _glued(key, [part[key] for part in parts]) for key in self.needed}
        except DataError as exc:
            raise DatasetDataError("%s: %s" % (self.place(position), exc)) from None
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
        raise DatasetDataError("key %r has no frame which could be repeated up to %d frames" % (key, length))
    return np.concatenate([value, np.repeat(value[-1:], length - len(value), axis=0)])


def _glued(key: str, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the parts as one array; texts without a time axis are joined by blanks."""
    if len(values) == 1:
        return values[0]
    if values[0].ndim:
        return np.concatenate(values)
    if values[0].dtype.kind not in "OSU":
        raise DatasetDataError("key %r has no time axis, so its values can't be glued" % key)
    joined: Optional[NDArray[Any]] = np.array(" ".join(str(value) for value in values), dtype=values[0].dtype.kind)
    assert joined is not None
    return joined


@register_dataset()
class ConcatSeqsDataset(FormatOfInner, CombiningDataset):
    """Sequences of another dataset, glued as lists of tags say: one line per new sequence, tags joined by ``;``.

    The order options act on the new sequences; a length is the sum of those in ``seq_len_file``.
    """

    @dataclass
    class Options(CombiningDataset.Options):
        dataset: Union[dict[str, Any], str, Any] = option(help="the inner dataset")
        seq_list_file: str = option(help="text file (.gz allowed): one new sequence per line, as joined tags")
        seq_len_file: str = option(help="dict tag -> length, as Python literal (.gz allowed)")
        seq_tag_delim: str = option(";", help="what joins the tags", check=lambda text: None if text else "is empty")
        remove_in_between_postfix: Optional[dict[str, Any]] = option(
            None, help="data key -> label, with which each part ends; it is removed from all parts but the last"
        )
        repeat_in_between_last_frame_up_to_multiple_of: Optional[dict[str, Any]] = option(
            None,
            help="data key -> n: the last frame of all parts but the last is repeated up to a multiple of n frames",
        )
        pad_narrow_data_to_multiple_of_target_len: Optional[dict[str, Any]] = option(
            None,
            help="data key -> (target, n): all parts but the last are cut, or their last frame is repeated, to n times "
            "the length of the target in the inner dataset",
        )
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None, help="{(first, last epoch): {'max_mean_len': x}}: only the shortest sequences, with mean length x"
        )

    def setup(self) -> None:
        """Create the inner dataset, and read the lists."""
        super().setup()
        opts = self.opts
        self.inner = inner_dataset(self, opts.dataset, "%s_dataset" % self.name)
        self.is_stream = self.inner.is_stream
        if not takes_tags(self.inner):
            raise DatasetError("%s: the inner dataset can't read sequences by tag" % self._owner())
        self._gluing = Gluing.make(
            opts.remove_in_between_postfix,
            opts.repeat_in_between_last_frame_up_to_multiple_of,
            opts.pad_narrow_data_to_multiple_of_target_len,
            owner=self._owner(),
        )
        self._filter = EpochFilter.parse(opts.epoch_wise_filter, owner=self._owner())
        with self._wanted_by("seq_list_file"):
            self._tags = safe_files.read_seq_tags(opts.seq_list_file)
        self._parts = [tag.split(opts.seq_tag_delim) for tag in self._tags]
        self._sums = self._read_lengths()
        self.check_format()

    def _read_lengths(self) -> NDArray[Any]:
        path = self.opts.seq_len_file
        with self._wanted_by("seq_len_file"):
            table = safe_files.read_seq_lens(path)
        for tag, parts in zip(self._tags, self._parts):
            for part in parts:
                if part not in table:
                    raise DatasetDataError(
                        "%s: seq_len_file %r lacks the sequence %r, which %r in %r needs. %s"
                        % (
                            self._owner(),
                            path,
                            part,
                            tag,
                            self.opts.seq_list_file,
                            did_you_mean(part, list(table)[:2000]),
                        )
                    )
        return np.array([sum(table[part] for part in parts) for parts in self._parts])

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the inner dataset."""
        specs = self.inner.data_specs
        for name, key in self._gluing.named_keys():
            if key not in specs:
                raise DatasetError(
                    "%s: option %r names the key %r, which the inner dataset lacks. %s"
                    % (self._owner(), name, key, did_you_mean(key, specs))
                )
        return specs

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        return self.inner.labels

    @property
    def num_seqs(self) -> int:
        """Return the number of lines of ``seq_list_file``."""
        return len(self._tags)

    def tag(self, index: int) -> str:
        """Return the joined tags."""
        return self._tags[index]

    def seq_lengths(self) -> NDArray[Any]:
        """Return lengths [num_seqs], the sums of those in ``seq_len_file``."""
        return self._sums

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch."""
        order = super().seq_order(epoch)
        for entry in self._filter.at(epoch):
            if order is not None:
                order = limit_mean_length(order, self._sums[order], entry.get("max_mean_len"))
        return order

    @property
    def redraws(self) -> bool:
        """Return whether data of the inner dataset is random."""
        return self.inner.redraws

    def _occurrences(self, whole: NDArray[Any], places: NDArray[Any], nth: Optional[NDArray[Any]]) -> NDArray[Any]:
        """Return the number of earlier occurrences of each part in the epoch, other processes included.

        :param whole: corpus indices of the epoch
        :param places: those that this process reads
        :param nth: earlier occurrences of each of all in the epoch, if more than their order shows
        """
        tags = [tag for index in whole for tag in self._parts[index]]
        counts = occurrences(np.unique(tags, return_inverse=True)[1])
        if nth is not None:  # occurrences of each part beyond those in this order
            more = nth - occurrences(whole)
            counts += np.repeat(more, [len(self._parts[index]) for index in whole])
        ends = np.cumsum([len(self._parts[index]) for index in whole])
        chosen = [np.arange(ends[place] - len(self._parts[whole[place]]), ends[place]) for place in places]
        return counts[np.concatenate(chosen)] if chosen else counts[:0]

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> GluedEpoch:
        """Return the sequences of an epoch by position, to be closed.

        :raises DataError: the inner dataset lacks a sequence
        """
        whole = self.explicit_order(epoch, chosen)
        assert whole is not None
        places = np.arange(len(whole)) if chosen.share is None else chosen.share.of_order(np.arange(len(whole)))
        order = whole[places]
        parts = [self._parts[index] for index in order]
        of_inner = Chosen(
            seq_list=[tag for tags_of_one in parts for tag in tags_of_one],
            by_itself=chosen.by_itself,
            nth=self._occurrences(whole, places, chosen.nth) if self.inner.redraws else None,
        )
        try:
            reader = self.inner.open_epoch(epoch, self._gluing.needed_keys(keys), of_inner)
        except DataError as exc:
            raise DatasetDataError("%s: seq_list_file %r: %s" % (self._owner(), self.opts.seq_list_file, exc)) from None
        return GluedEpoch(self, epoch, order, keys, reader, parts, self._gluing)
