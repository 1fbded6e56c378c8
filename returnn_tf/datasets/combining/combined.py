"""CombinedDataset: the sequences of several datasets, mixed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.combining.base import inner_dataset, read_inner
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example, can_hold
from returnn_tf.datasets.core.generating import dim_and_ndim
from returnn_tf.datasets.core.per_key import is_int
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.stream import StreamDataset
from returnn_tf.util.random_state import set_state, state_of

_MIXED = ("random_dataset", "interleave")
_OF_STREAMS = ("default", "reverse", "reversed", *_MIXED)


@register_dataset()
class CombinedDataset(StreamDataset):
    """Several datasets with different sequences; a key which the dataset of a sequence lacks has no frames.

    The order of the datasets is that of their names. An epoch has what each dataset has in it, by its own options for
    order, partition and repetition; ``sampling_sizes`` takes the next n of these, starting over at the end.
    ``seq_ordering`` is ``default`` (one dataset after the other), any other order of all sequences, ``random_dataset``
    (a random dataset is the next, order within each kept) or ``interleave`` (the one of which the least is done).

    With a stream among the datasets this is a stream, too. Then each needs ``estimated_num_seqs``, and the order is
    ``default``, ``reverse``, ``random_dataset`` or ``interleave``.

    >>> train = {
    ...     "class": "CombinedDataset",
    ...     "datasets": {"a": {"class": "HDFDataset", "files": ["a.hdf"]}, "b": {"class": "HDFDataset", "files": []}},
    ...     "data_map": {("a", "data"): "data", ("b", "data"): "data"},
    ...     "seq_ordering": "interleave",
    ... }
    """

    takes_default_order = True
    makes_order = True

    @dataclass
    class Options(Dataset.Options):
        datasets: dict[str, Any] = option(help="name -> dataset")
        data_map: dict[Any, str] = option(help="(name, key of that dataset) -> key")
        sampling_sizes: Union[None, int, dict[str, Any]] = option(
            None, help="sequences to take of each dataset in an epoch, for all or by name; None = all"
        )
        data_dims: Optional[dict[str, Any]] = option(
            None, help="key -> (dim, number of axes with time); default: as in the first dataset that has the key"
        )
        data_dtypes: Optional[dict[str, str]] = option(
            None, help="key -> type; default int32 for labels, float32 for other data"
        )
        interleave_gumbel_scale: Union[None, float, str] = option(
            None, help="of the noise in the choices of 'interleave': a number, or 'remaining' to let it fall to 0"
        )

    def setup(self) -> None:
        """Create the datasets, and decide whether there is random access."""
        self._names = sorted(self.opts.datasets)
        check_data_map(self.opts.data_map, self.opts.datasets, owner=self._owner())
        self._inner = [
            inner_dataset(self, self.opts.datasets[name], "%s_%s" % (self.name, name), shards=False)
            for name in self._names
        ]
        self._keys = [
            {key: inner for (owner, inner), key in self.opts.data_map.items() if owner == name} for name in self._names
        ]
        self._check_inner_keys()
        self.is_stream = any(dataset.num_seqs is None for dataset in self._inner)
        counts = [dataset.num_seqs or 0 for dataset in self._inner]
        self._starts = np.cumsum([0, *counts])
        self._sizes = [self._sampling_size(name) for name in self._names]
        self._check_mixing()
        self._formats = {key: self._spec(key) for key in sorted(set(self.opts.data_map.values()))}

    def _check_inner_keys(self) -> None:
        for name, dataset, keys in zip(self._names, self._inner, self._keys):
            for key in keys.values():
                if key not in dataset.data_keys:
                    raise DatasetError(
                        "%s: the dataset %r has no key %r. %s"
                        % (self._owner(), name, key, did_you_mean(key, dataset.data_keys))
                    )

    def _check_mixing(self) -> None:
        opts = self.opts
        scale = opts.interleave_gumbel_scale
        if isinstance(scale, str) and scale != "remaining":
            raise DatasetError(
                "%s: interleave_gumbel_scale is a number or 'remaining', not %r" % (self._owner(), scale)
            )
        if isinstance(scale, float) and not np.isfinite(scale):
            raise DatasetError("%s: interleave_gumbel_scale is %s, but must be finite" % (self._owner(), scale))
        for name, dataset in zip(self._names, self._inner):
            if dataset.endless:
                raise DatasetError("%s: the dataset %r is endless; give it num_seqs" % (self._owner(), name))
            if self.is_stream and dataset.num_seqs is None and not dataset.opts.estimated_num_seqs:
                raise DatasetError(
                    "%s: the number of sequences of the dataset %r is unknown. Give it estimated_num_seqs"
                    % (self._owner(), name)
                )
            if not self.is_stream and dataset.leaves_out and not dataset.opts.skip_broken_seqs:
                raise DatasetError(
                    "%s: the dataset %r has %s, but its sequences are read one by one here; give skip_broken_seqs"
                    % (self._owner(), name, dataset.leaves_out)
                )
        if not self.is_stream:
            return
        for name, value in (("partition_epoch", 1), ("repeat_epoch", 1), ("sampling_sizes", None)):
            if getattr(opts, name) != value:
                raise DatasetError("%s: %s is not possible with a stream among the datasets" % (self._owner(), name))

    @staticmethod
    def parse_ordering(text: Any) -> orders.Ordering:
        """Parse the option ``seq_ordering``, which may also mix the datasets."""
        if text in (*_MIXED, "reversed"):
            return orders.Ordering(text)
        return orders.parse_ordering(text)

    def _sampling_size(self, name: str) -> Optional[int]:
        given = self.opts.sampling_sizes
        size = given.get(name) if isinstance(given, Mapping) else given
        if size is not None and (not is_int(size) or size < 1):
            raise DatasetError("%s: sampling_sizes of %r is %r, not a number above 0" % (self._owner(), name, size))
        if isinstance(given, Mapping):
            for other in given:
                if other not in self._names:
                    raise DatasetError(
                        "%s: sampling_sizes of %r. %s" % (self._owner(), other, did_you_mean(other, self._names))
                    )
        return None if size is None else int(size)

    # ---- format

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the formats of the keys of ``data_map``, sorted by key."""
        return dict(self._formats)

    def _spec(self, key: str) -> DataSpec:
        opts = self.opts
        owners = [number for number, keys in enumerate(self._keys) if key in keys]
        return joined_spec(
            key,
            {self._names[number]: self._inner[number].data_specs[self._keys[number][key]] for number in owners},
            dim=(opts.data_dims or {}).get(key),
            dtype=(opts.data_dtypes or {}).get(key),
            owner=self._owner(),
        )

    def _mapped(self, number: int, data: Mapping[str, NDArray[Any]], keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence of one of the datasets under the keys of this one."""
        mapped = {}
        for key in keys:
            spec = self._formats[key]
            inner = self._keys[number].get(key)
            if inner is None:
                shape = (0, *(size or 0 for size in spec.shape)) if spec.ndim else ()
                mapped[key] = np.full(shape, "", object) if spec.is_text else np.zeros(shape, spec.dtype)
            elif key in (self.opts.data_dtypes or {}):
                mapped[key] = data[inner].astype(spec.numpy_dtype)
            else:
                mapped[key] = data[inner]
        return mapped

    # ---- random access

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the sum over the datasets, None with a stream among them."""
        return None if self.is_stream else int(self._starts[-1])

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the dataset and the index in its corpus."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, index - int(self._starts[number])

    def tag(self, index: int) -> str:
        """Return the tag in its dataset."""
        if self.is_stream:
            return super().tag(index)
        number, local = self._locate(index)
        return self._inner[number].tag(local)

    def file_of(self, index: int) -> str:
        """Return the file in its dataset."""
        number, local = self._locate(index)
        return self._inner[number].file_of(local)

    def lengths(self, index: int) -> Optional[dict[str, int]]:
        """Return frames by key; 0 for the keys that its dataset lacks."""
        number, local = self._locate(index)
        lengths = self._inner[number].lengths(local)
        if lengths is None:
            return None
        keys = self._keys[number]
        return {key: lengths[keys[key]] if key in keys else int(not spec.ndim) for key, spec in self._formats.items()}

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return the lengths of all datasets, None if one of them does not estimate them."""
        found = [dataset.seq_lengths() if dataset.estimates_lengths else None for dataset in self._inner]
        return None if any(lengths is None for lengths in found) else np.concatenate(found)  # type: ignore[arg-type]

    @property
    def read_threads(self) -> int:
        """Return the number of threads that all datasets allow."""
        return min((dataset.read_threads for dataset in self._inner), default=1)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read a sequence of its dataset."""
        return self.read_again(index, epoch, keys, 0)

    @property
    def redraws(self) -> bool:
        """Return whether data of one of the datasets is random."""
        return any(dataset.redraws for dataset in self._inner)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a repeated sequence of its dataset."""
        number, local = self._locate(index)
        wanted = [inner for key, inner in self._keys[number].items() if key in keys]
        return self._mapped(number, read_inner(self._inner[number], local, epoch, wanted, nth), keys)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices, mixed from the orders of the datasets."""
        if self.is_stream:
            return None
        if not self.num_seqs:
            raise DatasetDataError("%s is empty: its datasets have no sequences" % self._owner())
        parts = []
        for dataset, start, size in zip(self._inner, self._starts, self._sizes):
            own = dataset.seq_order(epoch)
            assert own is not None
            parts.append(own[sampled(len(own), size, epoch)] + start)
        return self.epoch_order.part(self._mixed(parts, epoch), epoch, self.corpus_facts)

    def _mixed(self, parts: list[NDArray[Any]], epoch: int) -> NDArray[Any]:
        ordering = self.ordering(epoch)
        seed = self.epoch_seed(epoch, nth=ordering.nth)
        order = np.concatenate(parts)
        if ordering.kind not in _MIXED:
            kind = dataclasses.replace(ordering, kind="reverse") if ordering.kind == "reversed" else ordering
            chosen = orders.order_sequences(kind, len(order), lambda: self.needed_lengths()[order], seed)
            return np.asarray(order[chosen], np.int64)
        counts = [len(part) for part in parts]
        if ordering.kind == "random_dataset":
            numbers = random_dataset(counts, seed)
        else:
            numbers = list(interleave(counts, self.opts.interleave_gumbel_scale, seed))
        sources = [iter(part) for part in parts]
        return np.array([next(sources[number]) for number in numbers], np.int64)

    # ---- stream

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Yield the sequences of all datasets in the order of the epoch."""
        chooser = self._chooser(epoch)
        first, state, *places = how.get("resume") or (0, None, *([(0, 0, None)] * len(self._inner)))
        if state is not None:
            set_state(chooser.rng, state)
        with contextlib.ExitStack() as stack:
            sources = [
                stack.enter_context(SourceEpoch(dataset, epoch, *place)) for dataset, place in zip(self._inner, places)
            ]
            for index in itertools.count(first):
                left = {number: source for number, source in enumerate(sources) if source.has_next()}
                if not left:
                    return
                fractions = {number: source.fraction for number, source in left.items()}
                remaining = {number: source.remaining for number, source in left.items()}
                number = chooser.next(fractions, remaining)
                sequence = sources[number].next()
                state = None if chooser.rng is None else state_of(chooser.rng)
                yield dataclasses.replace(
                    sequence,
                    index=index,
                    data=self._mapped(number, sequence.data, list(self._formats)),
                    complete=None,
                    resume=[index + 1, state, *(source.place for source in sources)],
                )

    def _chooser(self, epoch: int) -> Any:
        ordering = self.ordering(epoch)
        if ordering.kind not in _OF_STREAMS:
            raise DatasetError(
                "%s: seq_ordering %r is not possible with a stream among the datasets, only %s"
                % (self._owner(), ordering.kind, ", ".join(_OF_STREAMS))
            )
        seed = self.epoch_seed(epoch)
        if ordering.kind == "interleave":
            return Interleave(self.opts.interleave_gumbel_scale, seed)
        if ordering.kind == "random_dataset":
            return RandomDataset(seed)
        return InOrder(backwards=ordering.kind != "default")


def check_data_map(data_map: Mapping[Any, Any], datasets: Mapping[str, Any], *, owner: str) -> None:
    """Check the option ``data_map``: (name of a dataset, key of it) -> key.

    :raises ConfigError: it has another form, or a dataset that does not exist
    """
    if not data_map or not datasets:
        raise DatasetError("%s: 'datasets' and 'data_map' must not be empty" % owner)
    for source, key in data_map.items():
        if not isinstance(source, tuple) or len(source) != 2 or not isinstance(key, str):
            raise DatasetError(
                "%s: data_map maps (name of a dataset, key of it) to a key, not %r to %r" % (owner, source, key)
            )
        if source[0] not in datasets:
            raise DatasetError(
                "%s: data_map has a dataset %r. %s" % (owner, source[0], did_you_mean(source[0], datasets))
            )


def joined_spec(
    key: str, found: Mapping[str, DataSpec], *, dim: Any = None, dtype: Optional[str] = None, owner: str
) -> DataSpec:
    """Return the format of a key: that of the first dataset, changed by options.

    :param found: name of each dataset that has the key -> its format there
    :param dim: entry of the option ``data_dims``
    :param dtype: entry of the option ``data_dtypes``
    :param owner: prefix of errors
    :raises ConfigError: the datasets differ, or an option does not fit them
    """
    first, spec = next(iter(found.items()))
    if dim is not None:
        size, ndim = dim_and_ndim(dim, option="data_dims", ndim=spec.ndim, owner=owner)
        spec = dataclasses.replace(spec, dim=size, ndim=ndim)
    for name, other in found.items():
        if (other.dim, other.ndim) != (spec.dim, spec.ndim) and other.dim:
            text = "%s: key %r has dim %d and %d axes in the dataset %r, but dim %d and %d axes in %s"
            source = "data_dims" if dim is not None else "%r" % first
            raise DatasetError(text % (owner, key, other.dim, other.ndim, name, spec.dim, spec.ndim, source))
    default = "int32" if spec.sparse else "float32" if not spec.is_text else "object"
    if dtype is not None and not can_hold(dtype, spec):
        what = "%d labels" % spec.dim if spec.sparse else spec.dtype
        raise DatasetError("%s: data_dtypes: %r of key %r can't hold %s" % (owner, dtype, key, what))
    return dataclasses.replace(spec, dtype=default if dtype is None else dtype)


#: The scale of the noise: a number, "remaining" for one that falls to zero, or None for no noise.
Scale = Union[None, int, float, str]


def random_dataset(counts: list[int], seed: int) -> list[int]:
    """Return for each sequence the number of its dataset: all of them shuffled.

    :param counts: sequences by dataset
    """
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(seed).shuffle(numbers)
    return numbers


class Interleave:
    """Chooses the dataset with the lowest fraction done, unless noise is added.

    :param scale: of the gumbel noise that is added to the logarithm of the remaining number
    """

    def __init__(self, scale: Scale, seed: int):
        self._scale = scale
        self.rng = None if scale is None else np.random.RandomState(seed)

    def next(self, fractions: dict[int, float], remaining: dict[int, float]) -> int:
        """Return the number of the dataset to read next.

        :param fractions: by dataset which is not at its end: the part that is done once its next sequence is read
        :param remaining: likewise, how many sequences are not read yet
        """
        numbers = sorted(fractions)
        if self.rng is None or self._scale is None:
            return min(numbers, key=lambda number: (fractions[number], number))
        scale = 1.0 - max(fractions.values()) if isinstance(self._scale, str) else float(self._scale)
        noise = self.rng.gumbel(size=len(numbers))
        scores = [math.log(max(remaining[number], 1)) + scale * float(value) for number, value in zip(numbers, noise)]
        return numbers[int(np.argmax(scores))]


def interleave(counts: list[int], scale: Scale, seed: int) -> Iterator[int]:
    """Yield for each sequence the number of its dataset, as `Interleave` chooses it."""
    chooser = Interleave(scale, seed)
    done = [0] * len(counts)
    for _ in range(sum(counts)):
        left = {number: count - done[number] for number, count in enumerate(counts) if done[number] < count}
        fractions = {number: (done[number] + 1) / counts[number] for number in left}
        number = chooser.next(fractions, {key: float(value) for key, value in left.items()})
        done[number] += 1
        yield number


class RandomDataset:
    """Chooses among datasets of unknown number in proportion to what is estimated to remain of each."""

    def __init__(self, seed: int):
        self.rng = np.random.RandomState(seed)

    def next(self, fractions: dict[int, float], remaining: dict[int, float]) -> int:
        """Return the number of the dataset to read next, of those in the arguments of `Interleave.next`."""
        numbers = sorted(remaining)
        weights = np.array([max(remaining[number], 1.0) for number in numbers])
        return int(self.rng.choice(numbers, p=weights / weights.sum()))


class InOrder:
    """Chooses the first dataset that is not exhausted, or the last one."""

    rng = None

    def __init__(self, *, backwards: bool = False):
        self._choose = max if backwards else min

    def next(self, fractions: dict[int, float], remaining: dict[int, float]) -> int:
        """Return the number of the dataset to read next, of those in the arguments of `Interleave.next`."""
        return self._choose(fractions)


def sampled(count: int, size: Optional[int], epoch: int) -> NDArray[Any]:
    """Return the positions of the sequences that an epoch takes of a dataset: the next ones, wrapping around.

    :param count: sequences of the dataset
    :param size: how many to take, None for all
    """
    if size is None:
        return np.arange(count)
    return (np.arange(size) + (max(epoch, 1) - 1) * size) % count


class SourceEpoch:
    """The sequences of one dataset in an epoch, one read ahead.

    :param done: number of sequences that are delivered
    :param position: behind them
    :param resume: of the last of them
    """

    def __init__(self, dataset: Dataset, epoch: int, done: int, position: int, resume: Any):
        sequences = dataset.sequences(epoch, start=position, resume=resume)
        self._sequences: Generator[Example, None, None] = sequences  # type: ignore[assignment]
        #: for another source that goes on there: done, position, resume
        self.place = done, position, resume
        order = dataset.seq_order(epoch)
        self._total = float(dataset.opts.estimated_num_seqs or 1) if order is None else float(len(order))
        self._ahead: Optional[Example] = None

    def __enter__(self) -> SourceEpoch:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._sequences.close()

    def has_next(self) -> bool:
        """Return whether there is another sequence, reading it."""
        if self._ahead is None:
            self._ahead = next(self._sequences, None)
        return self._ahead is not None

    def next(self) -> Example:
        """Return the next sequence."""
        sequence, self._ahead = self._ahead, None
        assert sequence is not None
        self.place = self.place[0] + 1, sequence.position + 1, sequence.resume
        return sequence

    @property
    def fraction(self) -> float:
        """Return the part that is done once the next sequence is read."""
        complete = None if self._ahead is None else self._ahead.complete
        return min((self.place[0] + 1) / self._total, 1.0) if complete is None else complete

    @property
    def remaining(self) -> float:
        """Return the estimated number of sequences that are still to be read."""
        return max(self._total - self.place[0], 0.0)
