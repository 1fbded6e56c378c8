"""`Int8Variable`: a parameter of float32 that is stored as int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CheckpointDataError
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.ops.int8 import Int8Matrix, from_int8, stored_shape, to_int8
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class Int8Spec:
    """A matrix to store as int8.

    :param channels: the axis whose entries have scales of their own, the first or the last one; others are the depth
    """

    param: ParamSpec
    channels: int

    @property
    def depth(self) -> int:
        """Return the size of the other axes."""
        return self.param.size // self.param.shape[self.channels]

    @property
    def by_rows(self) -> bool:
        """Return whether the channels are the first axis."""
        return self.channels == 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the numbers and of the scales."""
        width = self.param.shape[self.channels]
        return stored_shape(width, self.depth), (width,)

    @property
    def part_names(self) -> tuple[str, str]:
        """Return the names of the numbers and of the scales, where files list what is stored."""
        return part_names(self.param.name)

    @property
    def size(self) -> int:
        """Return the number of stored bytes."""
        numbers, scales = self.shapes
        return int(np.prod(numbers)) + 4 * scales[0]

    def check(self, value: NDArray[Any]) -> None:
        """Check that a value of the parameter can be stored.

        :raises DataError: it has NaN or infinite numbers
        """
        wrong = ~np.isfinite(value)
        if wrong.any():
            path, place = self.param.layer_path, np.argwhere(wrong)[0].tolist()
            raise CheckpointDataError(
                "Layer %r: the parameter %r can't be stored as int8: %d of its numbers are not finite, as the one at "
                "%s, which is %s. Take another checkpoint, or leave the layer out: quantize = {'dtype': 'int8', "
                "'exclude': [%r]}." % (path, self.param.name, wrong.sum(), place, value[tuple(place)], path)
            )

    def stored(self, value: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return numbers and scales for a value of the parameter, see `check`."""
        self.check(value)
        rows = value.reshape([self.param.shape[0], -1]) if self.by_rows else value.reshape([-1, value.shape[-1]]).T
        return to_int8(rows)


def part_names(name: str) -> tuple[str, str]:
    """Return the names of the numbers and of the scales of a parameter, where files list what is stored."""
    return name + "/int8", name + "/scales"


def check_values(params: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Check that parameters can store values, before the first one is changed.

    :raises DataError: one that is int8 would get NaN or infinite numbers
    """
    for name, variable in params.items():
        if isinstance(variable, Int8Variable):
            variable.spec.check(np.asarray(values[name]))


def stored_parts(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables behind parameters by their names in files: both parts of an `Int8Variable`."""
    found: dict[str, Any] = {}
    for name, variable in params.items():
        found.update(variable.parts if isinstance(variable, Int8Variable) else {name: variable})
    return found


class Int8Variable:
    """Numbers and scales in place of a `tf.Variable`: it is assigned, read and converted to a tensor as one of float32.

    Operators are those of the tensor.

    :param parts: variables for the numbers and the scales, of the shapes of the specification
    """

    #: Operators of numpy's arrays leave it to those here.
    __array_priority__ = 100

    def __init__(self, spec: Int8Spec, parts: Sequence[Any]) -> None:
        self.spec = spec
        self.numbers, self.scales = parts
        self.name: str = spec.param.name
        self.trainable = False

    @classmethod
    def of_value(cls, spec: Int8Spec, value: NDArray[Any]) -> Int8Variable:
        """Return a new one with a value."""
        with tf.device(spec.param.device):
            return cls(spec, [tf.Variable(part, trainable=False) for part in spec.stored(value)])

    @property
    def shape(self) -> Any:
        """Return the shape of the parameter."""
        return tf.TensorShape(self.spec.param.shape)

    @property
    def dtype(self) -> Any:
        """Return the type that it is read in."""
        return tf.float32

    def assign(self, value: Any) -> None:
        """Round a value, and store it.

        :raises DataError: it has NaN or infinite numbers
        """
        for part, stored in zip((self.numbers, self.scales), self.spec.stored(np.asarray(value))):
            part.assign(stored)

    def numpy(self) -> NDArray[np.float32]:
        """Return the rounded value."""
        value = from_int8(self.numbers.numpy(), self.scales.numpy(), self.spec.depth)
        return (value if self.spec.by_rows else value.T).reshape(self.spec.param.shape)

    def matrix(self) -> Int8Matrix:
        """Return it as a matrix [depth, channels], read where this is called."""
        numbers, scales = map(tf.convert_to_tensor, (self.numbers, self.scales))
        return Int8Matrix(numbers, scales, self.spec.depth)

    def read_value(self) -> Any:
        """Return the rounded value as a tensor."""
        values = self.matrix().values()
        return tf.reshape(tf.transpose(values) if self.spec.by_rows else values, self.spec.param.shape)

    @property
    def parts(self) -> dict[str, Any]:
        """Return the variables for the numbers and the scales by their names in files."""
        return dict(zip(self.spec.part_names, (self.numbers, self.scales)))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> NDArray[Any]:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        value = self.read_value()
        return value if dtype is None else tf.cast(value, dtype)


def _of_tensor(name: str) -> Callable[..., Any]:
    """Return a method that calls one of the tensor."""
    return lambda self, *others: getattr(self.read_value(), name)(*others)


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in ("getitem", "neg", "abs", "lt", "le", "gt", "ge", *_BINARY, *("r" + name for name in _BINARY)):
    setattr(Int8Variable, "__%s__" % _name, _of_tensor("__%s__" % _name))
