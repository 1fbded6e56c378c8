"""The named values that single steps pass on to the next one: variables of a graph, or tensors of a function."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.export.meta.variables import variable
from returnn_tf.util.lazy_tf import tf

SCOPE = "IO"


class StepValues(abc.ABC):
    """Holds the values by name.

    First the run of the encoder makes them; `value` is what a step reads.
    """

    #: What the run of the encoder sets.
    first: dict[str, Any]

    @abc.abstractmethod
    def make(
        self, name: str, shape: tuple[Optional[int], ...], dtype: str, first: Any, *, has_batch: bool = False
    ) -> None:
        """Make a value.

        :param shape: None where the size changes
        :param first: what the run of the encoder sets
        :param has_batch: whether the first axis is the batch
        """

    @abc.abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abc.abstractmethod
    def value(self, name: str) -> Any:
        """Return the value before the step."""


class StepVariables(StepValues):
    """Variables of the graph below ``IO``, in the order in which they were made: a decoder reads and writes them."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._batched: set[str] = set()
        self.first = {}

    def make(
        self, name: str, shape: tuple[Optional[int], ...], dtype: str, first: Any, *, has_batch: bool = False
    ) -> None:
        """Make a variable."""

        def initial() -> Any:
            sizes = [1 if size is None else size for size in shape]
            return tf.fill(sizes, "") if dtype == "string" else tf.zeros(sizes, dtype)

        made = variable("%s/%s" % (SCOPE, name), initial, shape, dtype)
        self._variables[name] = made
        self._values[name] = made.read_value()
        self.first[name] = first
        if has_batch:
            self._batched.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def value(self, name: str) -> Any:
        """Return the value before the assignments of a run."""
        return self._values[name]

    def assign(self, name: str, value: Any) -> Any:
        """Return the op that sets a variable."""
        return self._variables[name].assign(value, name="assign", read_value=False)

    def has_batch(self, name: str) -> bool:
        """Return whether the first axis is the batch."""
        return name in self._batched

    @property
    def names(self) -> list[str]:
        """Return the names of all variables."""
        return list(self._variables)

    def described(self) -> dict[str, dict[str, Any]]:
        """Return name -> op, shape with None where the size is unknown, and dtype."""
        return {
            name: {"var_op": var.op.name, "shape": var.shape.as_list(), "dtype": var.dtype.base_dtype.name}
            for name, var in self._variables.items()
        }


class PassedValues(StepValues):
    """Tensors that a function gets and returns."""

    def __init__(self) -> None:
        self.first = {}
        self._values: dict[str, Any] = {}

    def make(
        self, name: str, shape: tuple[Optional[int], ...], dtype: str, first: Any, *, has_batch: bool = False
    ) -> None:
        """Set the value before the first step."""
        self.first[name] = self._values[name] = first

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> Any:
        """Return the present value."""
        return self._values[name]

    def set(self, values: Mapping[str, Any]) -> None:
        """Set present values."""
        self._values.update(values)
