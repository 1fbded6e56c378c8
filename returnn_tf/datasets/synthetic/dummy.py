"""Counters and random numbers as data, for tests and measurements of speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetError, did_you_mean
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.declared import specs_of_templates
from returnn_tf.datasets.core.generating import GeneratingDataset, dim_and_ndim
from returnn_tf.datasets.core.per_key import is_int
from returnn_tf.datasets.core.registry import register_dataset


class _CounterDataset(GeneratingDataset):
    """Sequence i counts from i: dense values ((c mod max) + shift) * scale, classes c mod number of classes."""

    @dataclass
    class Options(GeneratingDataset.Options):
        input_max_value: float = option(10.0, help="the counter of the input wraps here")
        input_shift: Optional[float] = option(None, help="added to the wrapped counter; default -input_max_value / 2")
        input_scale: Optional[float] = option(None, help="factor of the shifted counter; default 1 / input_max_value")

    dense_dtype = "float64"
    sparse_dtype = "int64"

    def seq_lens(self) -> dict[str, int]:
        """Return frames by key, in the order in which the counter visits the keys."""
        raise NotImplementedError("%s.seq_lens" % type(self).__name__)

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Generate all keys with one running counter."""
        maximum = self.opts.input_max_value
        shift = -maximum / 2 if self.opts.input_shift is None else self.opts.input_shift
        scale = 1.0 / maximum if self.opts.input_scale is None else self.opts.input_scale
        data, counter = {}, index
        for key, frames in self.seq_lens().items():
            dim, ndim = self._dims_by_key()[key]
            count = frames * (dim if ndim > 1 else 1)
            numbers = np.arange(counter, counter + count)
            counter += count
            if ndim > 1:
                value = ((numbers % maximum + shift) * scale).reshape(frames, dim)
                data[key] = value.astype(self.dense_dtype)
            else:
                data[key] = (numbers % dim).astype(self.sparse_dtype)
        return data

    def _specs(self, dims: dict[str, tuple[int, int]]) -> dict[str, DataSpec]:
        return {
            key: DataSpec(
                dim=dim,
                ndim=min(ndim, 2),
                dtype=self.dense_dtype if ndim > 1 else self.sparse_dtype,
                shape=(dim,) if ndim > 1 else (),
            )
            for key, (dim, ndim) in dims.items()
        }


@register_dataset()
class DummyDataset(_CounterDataset):
    """Dense float32 "data" [seq_len, input_dim] and sparse int32 "classes" [seq_len]."""

    @dataclass
    class Options(_CounterDataset.Options):
        input_dim: int = option(help="feature dimension")
        output_dim: Union[int, list[Any]] = option(help="number of classes")
        seq_len: int = option(2, help="frames of every sequence")

    dense_dtype = "float32"
    sparse_dtype = "int32"

    def make_specs(self) -> dict[str, DataSpec]:
        """Return dense input, sparse target."""
        dims = dim_and_ndim(self.opts.output_dim, option="output_dim", ndim=1)
        return self._specs({"data": (self.opts.input_dim, 2), "classes": dims})

    def seq_lens(self) -> dict[str, int]:
        """Return the same length for both keys."""
        return {"data": self.opts.seq_len, "classes": self.opts.seq_len}


@register_dataset()
class DummyDatasetMultipleSequenceLength(DummyDataset):
    """Like DummyDataset, float64 [len, input_dim] and int64 [len], with a separate length for each key."""

    @dataclass
    class Options(DummyDataset.Options):
        seq_len: Annotated[Any, Written(Union[None, int, dict[str, int]])] = option(
            None, help="frames by key; default 10 for data, 20 for classes"
        )

    dense_dtype = "float64"
    sparse_dtype = "int64"

    def seq_lens(self) -> dict[str, int]:
        """Return the option ``seq_len``."""
        given = self.opts.seq_len
        if isinstance(given, int):
            return {"data": given, "classes": given}
        return {"data": 10, "classes": 20, **(given or {})}


@register_dataset()
class DummyDatasetMultipleDataKeys(_CounterDataset):
    """Any data keys: float64 [len, dim] or int64 [len]."""

    @dataclass
    class Options(_CounterDataset.Options):
        output_dim: dict[str, Any] = option(help="key -> [dim, ndim], ndim 2 = dense, 1 = sparse")
        input_dim: Optional[int] = option(None, help="feature dimension", inert="output_dim has the dims of all keys")
        seq_len: Union[int, dict[str, Any]] = option(20, help="frames, for all keys or by key")
        data_keys: list[Any] = option(("data", "classes"), help="the keys in the order of counting")

    def make_specs(self) -> dict[str, DataSpec]:
        """Derive the specs from ``output_dim``."""
        dims = {}
        for key in self.opts.data_keys:
            for name, table in (("output_dim", self.opts.output_dim), ("seq_len", self.opts.seq_len)):
                if not isinstance(table, int) and key not in table:
                    raise DatasetError(
                        "%s: %s lacks the key %r. %s" % (self._owner(), name, key, did_you_mean(key, table))
                    )
            dims[key] = dim_and_ndim(self.opts.output_dim[key], option="output_dim", ndim=2)
        return self._specs(dims)

    def seq_lens(self) -> dict[str, int]:
        """Return the option ``seq_len``."""
        given = self.opts.seq_len
        return {key: given if isinstance(given, int) else given[key] for key in self.opts.data_keys}


_DEFAULT_RANGE = (1, 10)
_INTEGERS = 100  # values of integers that are no labels are below


@register_dataset()
class DummyGenericDataset(GeneratingDataset):
    """Random sequences in a given format: normal numbers, uniform labels.

    >>> from returnn_tf.datasets import Dataset
    >>> template = {"data": {"dim": 3}, "classes": {"dim": 5, "sparse": True}}
    >>> options = {"data_template": template, "num_seqs": 2, "seq_lens": {"data": 4, "classes": [1, 3]}}
    >>> [seq.lengths["data"] for seq in Dataset.from_config({"class": "DummyGenericDataset", **options}).sequences(1)]
    [4, 4]
    """

    @dataclass
    class Options(GeneratingDataset.Options):
        data_template: dict[str, Any] = option(help="data key -> options as in extern_data")
        seq_lens: Union[None, int, list[Any], dict[str, Any]] = option(
            None, help="frames: a number, (least, most), or these by data key; default (1, 10)"
        )

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format of the templates."""
        specs = specs_of_templates(self.opts.data_template, where="%s: option 'data_template'" % self._owner())
        given = self.opts.seq_lens
        if isinstance(given, Mapping):
            for key in given:
                if key not in specs:
                    raise DatasetError(
                        "%s: option 'seq_lens' has the key %r, which data_template lacks. %s"
                        % (self._owner(), key, did_you_mean(key, specs))
                    )
        self._specs = specs
        self._ranges = {key: self._range(given.get(key) if isinstance(given, Mapping) else given) for key in specs}
        return dict(specs)

    def _range(self, value: Any) -> tuple[int, int]:
        if value is None:
            return _DEFAULT_RANGE
        ends = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
        if len(ends) != 2 or not all(is_int(end) for end in ends) or not 0 <= ends[0] <= ends[1]:
            raise DatasetError(
                "%s: option 'seq_lens': %r must be a number of frames or (least, most)" % (self._owner(), value)
            )
        return int(ends[0]), int(ends[1])

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Draw the lengths of all keys, then the data of one, and so on for each key."""
        data = {}
        for key, spec in self._specs.items():
            frames = {key: int(rng.randint(least, most + 1)) for key, (least, most) in self._ranges.items()}
            shape = ((frames[key],) if spec.ndim else ()) + tuple(n or frames[key] for n in spec.shape)
            data[key] = _values(rng, spec, shape)
        return data


def _values(rng: np.random.RandomState, spec: DataSpec, shape: tuple[int, ...]) -> NDArray[Any]:
    kind = str(np.dtype(spec.dtype).kind)
    if spec.sparse or (kind in "iu" and spec.dim and spec.ndim == 0):
        return np.asarray(rng.randint(0, max(spec.dim, 1), size=shape), spec.dtype)
    if kind in "iu":
        return np.asarray(rng.randint(0, _INTEGERS, size=shape), spec.dtype)
    if kind == "b":
        return np.asarray(rng.randint(0, 2, size=shape), bool)
    if kind == "O":
        return np.asarray(rng.randint(0, _INTEGERS, size=shape).astype(str), object)
    return np.asarray(rng.normal(0.0, 1.0, size=shape), spec.dtype)
