"""Applies functions of configs to sequences, and checks what they return."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import shown
from returnn_tf.config.user_code import USER_CODE, error_in_config
from returnn_tf.datasets.combining.functions import call_with_known
from returnn_tf.datasets.combining.mapping.tensor_dict import NamedTensor, TensorDict
from returnn_tf.datasets.core.data_spec import DataSpec, Example, checked_fraction
from returnn_tf.tensor import Dim, DimKind

_EXTRA = ("seq_tag", "seq_idx", "complete_frac")


@dataclasses.dataclass
class Mapper:
    """The function of one kind, and the formats of its data.

    :param owner: how errors begin
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

        :param rng: used by all of them in turn
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
            raise ConfigError("%s has to yield sequences, but returned %s" % (where, shown(results)))
        number, last = 0, 0.0
        for result in _checked(results):
            data = self._arrays(where, result)
            tag = str(_value(result, "seq_tag", "seq-%d" % number))
            given = checked_fraction(_value(result, "complete_frac", last), "%s: sequence %r" % (where, tag))
            fraction = last if given is None else given
            if fraction < last:
                raise DataError("%s: complete_frac of %r is %g, but was %g before" % (where, tag, fraction, last))
            last = fraction
            complete = fraction if counter.knows_end else None
            yield Example(index=number, tag=tag, data=data, position=number, complete=complete)
            number += 1
        if self.preserves_num_seqs:
            counter.read_rest()
        if self.preserves_num_seqs and number != counter.number:
            raise DataError(
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
            raise ConfigError("%s has to return a TensorDict, but returned %s" % (where, shown(result)))
        return {key: self._array(where, key, result, spec) for key, spec in self.outputs.items()}

    def _array(self, where: str, key: str, result: Any, spec: DataSpec) -> NDArray[Any]:
        if key not in result:
            names = ", ".join(name for name in result if name not in _EXTRA)
            raise DataError("%s: the result has no key %r, only %s; declare map_outputs" % (where, key, names))
        value = getattr(result[key], "raw_tensor", result[key])
        if value is None:
            raise DataError("%s: key %r of the result has no raw_tensor" % (where, key))
        array = np.asarray(value)
        dtype = "object" if array.dtype.kind in "OSU" else array.dtype.name
        sizes = (None, *spec.shape) if spec.ndim else ()
        fits = len(sizes) == array.ndim and all(
            wanted is None or wanted == size for wanted, size in zip(sizes, array.shape)
        )
        if dtype != spec.numpy_dtype.name or not fits:
            raise DataError(
                "%s: key %r of the result is %s %s, but should be %s %s; convert it, or declare map_outputs"
                % (where, key, dtype, list(array.shape), spec.dtype, list(sizes))
            )
        return array.astype(object) if dtype == "object" else array


@contextlib.contextmanager
def _errors_of(what: str, tensors: Optional[Mapping[str, Any]] = None) -> Iterator[None]:
    """Tell which function of the config failed, and in which line.

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
        raise DataError("%s: %s" % (what, text)) from exc


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
