"""Applies functions of configs to sequences, and checks what they return."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DataError, DatasetDataError, DatasetError, shown
from returnn_tf.config.user_code import call_with_known, error_in_config
from returnn_tf.config.user_files import USER_CODE
from returnn_tf.datasets.core.data_spec import DataSpec, Example, checked_fraction
from returnn_tf.tensor import Dim, DimKind


class NamedTensor:
    """An array with a name and dims.

    :param dims: without batch; by default as the array has them
    :param dtype: by default that of the array
    :param raw_tensor: the array, may be set later
    :param sparse_dim: the labels which the entries index
    :param options: what tensors of networks have in addition, not used
    """

    def __init__(
        self,
        name: str = "unnamed",
        dims: Optional[Iterable[Dim]] = None,
        dtype: Optional[str] = None,
        *,
        raw_tensor: Any = None,
        sparse_dim: Optional[Dim] = None,
        **options: Any,
    ):
        self.name = name
        self.raw_tensor = raw_tensor
        self.sparse_dim = sparse_dim
        self._dims = None if dims is None else tuple(dims)
        self._dtype = dtype
        self.options = options

    def __repr__(self) -> str:
        return "<NamedTensor %r %s %s>" % (self.name, self.dtype, list(self.shape))

    @property
    def dtype(self) -> str:
        """Return the numpy name of the type, "string" for text."""
        if self._dtype is not None:
            return self._dtype
        dtype = np.asarray(self.raw_tensor).dtype
        return "string" if dtype.kind in "OSU" else dtype.name

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Return the dims."""
        if self._dims is None:
            sizes = np.shape(self.raw_tensor)
            self._dims = tuple(Dim(DimKind.SPATIAL, size, "%s_dim%d" % (self.name, i)) for i, size in enumerate(sizes))
        return self._dims

    @property
    def shape(self) -> tuple[Optional[int], ...]:
        """Return the sizes of the axes, None for those which differ between sequences."""
        return tuple(dim.size for dim in self.dims)

    @property
    def sparse(self) -> bool:
        """Return whether the entries are label indices."""
        return self.sparse_dim is not None

    def copy_template(self, name: Optional[str] = None, *, dtype: Optional[str] = None) -> NamedTensor:
        """Return the same without an array."""
        return NamedTensor(name or self.name, self.dims, dtype or self.dtype, sparse_dim=self.sparse_dim)

    def copy(self, name: Optional[str] = None) -> NamedTensor:
        """Return a tensor with the same array."""
        return NamedTensor(
            name or self.name, self._dims, self._dtype, raw_tensor=self.raw_tensor, sparse_dim=self.sparse_dim
        )


class TensorDict(MutableMapping[str, NamedTensor]):
    """Named tensors by key; ``data`` is the dict of them.

    :param data: tensors or arrays by key, or an iterable of tensors
    """

    def __init__(self, data: Any = None):
        self.data: dict[str, Any] = {}
        if not isinstance(data, (Mapping, type(None))):
            data = {tensor.name: tensor for tensor in data}
        self.update(data or {})

    def __repr__(self) -> str:
        return "TensorDict(%s)" % ", ".join(map(repr, self.data.values()))

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value if hasattr(value, "raw_tensor") else NamedTensor(key, raw_tensor=value)

    def __delitem__(self, key: str) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def copy_template(self) -> TensorDict:
        """Return the same tensors without arrays."""
        return TensorDict({key: tensor.copy_template() for key, tensor in self.data.items()})

    def copy(self) -> TensorDict:
        """Return the same tensors, to be changed independently."""
        return TensorDict({key: tensor.copy() for key, tensor in self.data.items()})

    def as_raw_tensor_dict(self) -> dict[str, Any]:
        """Return the arrays by key."""
        return {key: tensor.raw_tensor for key, tensor in self.data.items()}


_EXTRA = ("seq_tag", "seq_idx", "complete_frac")


@dataclasses.dataclass
class Mapper:
    """The function of one kind, and the formats of its data.

    :param owner: prefix of errors
    :param map_seq: function of one sequence
    :param map_seq_stream: function of all sequences
    :param inputs: format of the data handed to it
    :param outputs: format of what it returns
    :param preserves_num_seqs: whether a function of all sequences has to yield as many as it gets
    """

    owner: str
    map_seq: Optional[Callable[..., Any]]
    map_seq_stream: Optional[Callable[..., Any]]
    inputs: dict[str, DataSpec]
    outputs: dict[str, DataSpec]
    preserves_num_seqs: bool = False

    def __post_init__(self) -> None:
        self._dims = {key: _dims(key, spec) for key, spec in self.inputs.items()}

    def apply(self, sequences: Iterable[Example], epoch: int, rng: np.random.RandomState) -> Iterator[Example]:
        """Yield the processed sequences.

        :param rng: shared by all of them
        :raises DataError: the result is not of the declared format
        """
        if self.map_seq is None:
            yield from self._apply_to_stream(sequences, epoch, rng)
            return
        where = "%s: map_seq" % self.owner
        for sequence in sequences:
            tensors = self._tensors(sequence)
            with _errors_of("map_seq, sequence %r" % sequence.tag, tensors):
                result = call_with_known(where, self.map_seq, tensors, epoch=epoch, seq_idx=sequence.position, rng=rng)
            data = self._arrays(where, result)
            yield dataclasses.replace(sequence, data=data)

    def _apply_to_stream(
        self, sequences: Iterable[Example], epoch: int, rng: np.random.RandomState
    ) -> Iterator[Example]:
        counter = _Counter(sequences, self._tensors)
        where = "%s: map_seq_stream" % self.owner
        with _errors_of("map_seq_stream"):
            results = call_with_known(where, self.map_seq_stream, iter(counter), epoch=epoch, rng=rng)  # type: ignore[arg-type]
        if not isinstance(results, Iterable):
            raise DatasetError("%s has to yield sequences, but returned %s" % (where, shown(results)))
        number, last = 0, 0.0
        for result in _checked(results):
            data = self._arrays(where, result)
            tag = str(_value(result, "seq_tag", "seq-%d" % number))
            given = checked_fraction(_value(result, "complete_frac", last), "%s: sequence %r" % (where, tag))
            fraction = last if given is None else given
            if fraction < last:
                raise DatasetDataError(
                    "%s: complete_frac of %r is %g, but was %g before" % (where, tag, fraction, last)
                )
            last = fraction
            complete = fraction if counter.knows_end else None
            yield Example(index=number, tag=tag, data=data, position=number, complete=complete)
            number += 1
        if self.preserves_num_seqs:
            counter.read_rest()
        if self.preserves_num_seqs and number != counter.number:
            raise DatasetDataError(
                "%s yielded %d sequences of %d, but map_seq_stream_preserves_num_seqs says that their number stays"
                % (where, number, counter.number)
            )

    def _tensors(self, sequence: Example) -> TensorDict:
        """Return a sequence in the form that functions get; they may change the arrays."""
        tensors = {
            key: NamedTensor(
                key, dims, _type_name(sequence.data[key]), raw_tensor=np.array(sequence.data[key]), sparse_dim=sparse
            )
            for key, (dims, sparse) in self._dims.items()
        }
        fraction = 0.0 if sequence.complete is None else sequence.complete
        extra = {
            "seq_tag": np.array(sequence.tag, dtype=object),
            "seq_idx": np.array(sequence.position, dtype=np.int32),
            "complete_frac": np.array(fraction, dtype=np.float32),
        }
        tensors.update({key: NamedTensor(key, (), raw_tensor=value) for key, value in extra.items()})
        return TensorDict(tensors)

    def _arrays(self, where: str, result: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays that a function has returned, checked."""
        if not isinstance(result, (TensorDict, Mapping)):
            raise DatasetError("%s has to return a TensorDict, but returned %s" % (where, shown(result)))
        return {key: self._array(where, key, result, spec) for key, spec in self.outputs.items()}

    def _array(self, where: str, key: str, result: Any, spec: DataSpec) -> NDArray[Any]:
        if key not in result:
            names = ", ".join(name for name in result if name not in _EXTRA)
            raise DatasetDataError("%s: the result has no key %r, only %s; declare map_outputs" % (where, key, names))
        value = getattr(result[key], "raw_tensor", result[key])
        if value is None:
            raise DatasetDataError("%s: key %r of the result has no raw_tensor" % (where, key))
        array = np.asarray(value)
        dtype = "object" if array.dtype.kind in "OSU" else array.dtype.name
        sizes = (None, *spec.shape) if spec.ndim else ()
        fits = len(sizes) == array.ndim and all(
            wanted is None or wanted == size for wanted, size in zip(sizes, array.shape)
        )
        if dtype != spec.numpy_dtype.name or not fits:
            raise DatasetDataError(
                "%s: key %r of the result is %s %s, but should be %s %s; convert it, or declare map_outputs"
                % (where, key, dtype, list(array.shape), spec.dtype, list(sizes))
            )
        return array.astype(object) if dtype == "object" else array


@contextlib.contextmanager
def _errors_of(what: str, tensors: Optional[Mapping[str, Any]] = None) -> Iterator[None]:
    """Name the function of the config that failed, and the line.

    :param what: begins the message
    :param tensors: what it got
    """
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as exc:
        text = error_in_config(exc) or "%s: %s" % (type(exc).__name__, exc)
        frames = list(traceback.walk_tb(exc.__traceback__))
        if isinstance(exc, KeyError) and frames[-1][0].f_globals.get("__name__") == TensorDict.__module__:
            places = [
                "%s:%d: " % (frame.f_code.co_filename, line) for frame, line in frames if USER_CODE in frame.f_builtins
            ]
            text = "%s%s" % (places[-1] if places else "", text)
            text += "; the sequence has %s" % ", ".join(tensors) if tensors is not None else ""
        raise DatasetDataError("%s: %s" % (what, text)) from exc


def _checked(results: Iterable[Any]) -> Iterator[Any]:
    with _errors_of("map_seq_stream"):
        items = iter(results)
    while True:
        with _errors_of("map_seq_stream"):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


class _Counter:
    """Counts the sequences that a function takes."""

    def __init__(self, sequences: Iterable[Example], convert: Callable[[Example], TensorDict]):
        self._sequences = iter(sequences)
        self._convert = convert
        self.number = 0
        self.knows_end = True

    def __iter__(self) -> Iterator[TensorDict]:
        for sequence in self._sequences:
            self.number += 1
            self.knows_end = sequence.complete is not None
            yield self._convert(sequence)

    def read_rest(self) -> None:
        """Count what the function has left."""
        self.number += sum(1 for _ in self._sequences)


def _value(result: Any, key: str, default: Any) -> Any:
    """Return a single value of a result."""
    if key not in result:
        return default
    value = getattr(result[key], "raw_tensor", result[key])
    return np.asarray(value).item()


def _type_name(array: NDArray[Any]) -> str:
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def _dims(key: str, spec: DataSpec) -> tuple[tuple[Dim, ...], Optional[Dim]]:
    """Return the dims of a data key, without batch, and the dim of its labels."""
    sizes = (None, *spec.shape) if spec.ndim else ()
    dims = tuple(
        Dim(DimKind.FEATURE if axis and axis == len(sizes) - 1 else DimKind.SPATIAL, size, "%s_dim%d" % (key, axis))
        for axis, size in enumerate(sizes)
    )
    return dims, Dim(DimKind.FEATURE, spec.dim or None, "%s_labels" % key) if spec.sparse else None


class LaplaceOrdering:
    """Sorts blocks of sequences by length, alternately ascending and descending, so that neighbours are similar.

    :param num_seqs_per_bin: sequences of a block
    :param length_key: the data key whose frames are counted
    """

    def __init__(self, num_seqs_per_bin: int, length_key: str = "data"):
        if not isinstance(num_seqs_per_bin, int) or num_seqs_per_bin < 1:
            raise DatasetError("LaplaceOrdering: num_seqs_per_bin is %r, not a number above 0" % (num_seqs_per_bin,))
        self.num_seqs_per_bin = num_seqs_per_bin
        self.length_key = length_key

    def __call__(self, iterator: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Yield the sequences in the new order."""
        block: list[Any] = []
        descending = False
        for sequence in iterator:
            block.append(sequence)
            if len(block) == self.num_seqs_per_bin:
                yield from self._sorted(block, descending)
                block, descending = [], not descending
        yield from self._sorted(block, descending)

    def _sorted(self, block: list[Any], descending: bool) -> list[Any]:
        fractions = [sequence["complete_frac"].raw_tensor for sequence in block]
        block = sorted(block, key=lambda sequence: len(sequence[self.length_key].raw_tensor), reverse=descending)
        for sequence, fraction in zip(block, fractions):  # the progress belongs to the place
            sequence["complete_frac"].raw_tensor = np.asarray(fraction)
        return block


class Sequential:
    """Applies several functions one after the other, either all to sequences or all to streams.

    :param functions: the first one is applied first
    """

    def __init__(self, *functions: Callable[..., Any]):
        self.functions = functions
        self.preserves_num_seqs = all(getattr(function, "preserves_num_seqs", False) for function in functions)

    def __call__(self, data: Any, **keywords: Any) -> Any:
        """Return the result of the last function."""
        for function in self.functions:
            data = call_with_known("Sequential", function, data, **keywords)
        return data
