"""Base of datasets that generate their sequences from random numbers or counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec


class GeneratingDataset(Dataset):
    """Sequences come from ``generate``, with a separate random generator for each epoch seed and corpus index.

    So the content of a sequence depends neither on the reading order nor on previous reads. Lengths are not
    known before generating, so the orders ``sorted`` and ``sorted_reverse`` count as ``default``.
    """

    @dataclass
    class Options(Dataset.Options):
        num_seqs: Optional[float] = option(None, help="number of sequences; default: endless")

    def setup(self) -> None:
        """Set the format by `make_specs`."""
        self._num_seqs = self._check_num_seqs()
        self.data_specs = self.windowed(self.make_specs())

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, with ``window`` as the data has it."""
        return {key: (spec.dim, spec.ndim) for key, spec in self.data_specs.items()}

    @property
    def num_inputs(self) -> int:
        """Return the dim of "data", before ``window``; 0 if there is no such key."""
        return self._dims_by_key().get("data", (0, 0))[0]

    def stored_dtype(self, key: str) -> str:
        """Return the type in which a copy of the dataset stores a data key: that in which networks compute."""
        return str(self.data_specs[key].as_extern_data()["dtype"])

    def _check_num_seqs(self) -> Optional[int]:
        value = self.opts.num_seqs
        if value is None or value == float("inf"):
            return None
        if not (value >= 0 and value == int(value)):  # also for NaN
            raise DatasetError("%s: num_seqs is %r, but must be an integer >= 0, or inf" % (self._owner(), value))
        return int(value)

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the option ``num_seqs``."""
        return self._num_seqs

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format by data key, before ``window``."""
        raise NotImplementedError("%s.make_specs" % type(self).__name__)

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Generate one sequence, key -> [time, ...]."""
        raise NotImplementedError("%s.generate" % type(self).__name__)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Generate one sequence."""
        data = self.generate(np.random.RandomState((self.epoch_seed(epoch), index)), index, epoch)
        return {key: data[key] for key in keys}


class SymbolTask(GeneratingDataset):
    """A task on sequences of symbols: one-hot float32 input [time, symbols], sparse target [time].

    A subclass defines ``input_symbols``, ``output_symbols``, ``make_input`` and ``make_output``.
    """

    input_symbols = ""
    output_symbols = ""
    target_dtype = "int64"

    def make_specs(self) -> dict[str, DataSpec]:
        """Return one-hot "data" and sparse "classes"."""
        dim = len(self.input_symbols)
        return {
            "data": DataSpec(dim=dim, ndim=2, dtype="float32", shape=(dim,)),
            "classes": DataSpec(dim=len(self.output_symbols), ndim=1, dtype=self.target_dtype),
        }

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw an input text."""
        raise NotImplementedError("%s.make_input" % type(self).__name__)

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return the target text, as long as the input text; a function of it alone."""
        raise NotImplementedError("%s.make_output" % cls.__name__)

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Return input and target as arrays."""
        text = self.make_input(rng)
        inputs = [self.input_symbols.index(symbol) for symbol in text]
        targets = [self.output_symbols.index(symbol) for symbol in self.make_output(text)]
        one_hot = np.zeros((len(inputs), len(self.input_symbols)), np.float32)
        one_hot[np.arange(len(inputs)), np.array(inputs, np.int64)] = 1.0
        return {"data": one_hot, "classes": np.array(targets, self.target_dtype)}


def choose(rng: np.random.RandomState, symbols: Sequence[str]) -> str:
    """Draw one of the symbols or words with equal probability."""
    return symbols[rng.randint(0, len(symbols))]


def dim_and_ndim(value: object, *, option: str, ndim: int, owner: str = "") -> tuple[int, int]:
    """Return (dim, ndim) from a dim, or from [dim, ndim].

    :param option: for the error message
    :param ndim: if only the dim is given
    :param owner: prefix of the message
    """
    parts: list[object] = list(value) if isinstance(value, (list, tuple)) else [value, ndim]
    if len(parts) != 2 or not all(isinstance(part, int) for part in parts):
        where = "%s: option %r" % (owner, option) if owner else "option %r" % option
        raise DatasetError("%s: %r must be a dim or [dim, number of axes with time]" % (where, value))
    return int(parts[0]), int(parts[1])  # type: ignore[call-overload]
