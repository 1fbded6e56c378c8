"""`RoundedVariable`: a parameter of float32 that is stored as smaller numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CheckpointDataError
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.native.decoding.search import in_large_pages
from returnn_tf.ops.bfloat16 import Bfloat16Matrix
from returnn_tf.ops.int8 import Int8Matrix
from returnn_tf.ops.rounded import RoundedMatrix
from returnn_tf.util.lazy_tf import tf

#: The types that matrices are stored in.
KINDS: Mapping[str, type[RoundedMatrix]] = {kind.dtype: kind for kind in (Int8Matrix, Bfloat16Matrix)}


@dataclasses.dataclass(frozen=True)
class RoundedSpec:
    """A matrix to store as smaller numbers.

    :param channels: the axis of what may have scales of its own, the first or the last one; the others are the depth
    :param kind: its type
    """

    param: ParamSpec
    channels: int
    kind: type[RoundedMatrix]

    @property
    def depth(self) -> int:
        """Return the size of the other axes."""
        return self.param.size // self.width

    @property
    def width(self) -> int:
        """Return the number of channels."""
        return self.param.shape[self.channels]

    @property
    def by_rows(self) -> bool:
        """Return whether the channels are the first axis."""
        return self.channels == 0

    @property
    def parts(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of each stored array by its name, where files list what is stored."""
        shapes = (self.kind.stored_shape(self.width, self.depth), (self.width,))
        names = part_names(self.param.name, self.kind)
        return dict(zip(names, zip(shapes, self.kind.parts.values())))

    @property
    def size(self) -> int:
        """Return the number of stored bytes."""
        return sum(math.prod(shape) * tf.as_dtype(dtype).size for shape, dtype in self.parts.values())

    def check(self, value: NDArray[Any]) -> None:
        """Check that a value of the parameter can be stored.

        :raises DataError: it has NaN or infinite numbers
        """
        wrong = ~np.isfinite(value)
        if wrong.any():
            path, place, dtype = self.param.layer_path, np.argwhere(wrong)[0].tolist(), self.kind.dtype
            raise CheckpointDataError(
                "Layer %r: the parameter %r can't be stored as %s: %d of its numbers are not finite, as the one at %s, "
                "which is %s. Take another checkpoint, or leave the layer out: quantize = {'dtype': %r, 'exclude': "
                "[%r]}." % (path, self.param.name, dtype, wrong.sum(), place, value[tuple(place)], dtype, path)
            )

    def stored(self, value: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the arrays to store for a value of the parameter, see `check`."""
        self.check(value)
        rows = value.reshape([self.width, -1]) if self.by_rows else value.reshape([-1, self.width]).T
        return self.kind.round(rows)


def part_names(name: str, kind: type[RoundedMatrix]) -> list[str]:
    """Return the names of the stored arrays of a parameter, where files list what is stored."""
    return ["%s/%s" % (name, part) for part in kind.parts]


def check_values(params: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Check that parameters can store values, before the first one is changed.

    :raises DataError: one that is rounded would get NaN or infinite numbers
    """
    for name, variable in params.items():
        if isinstance(variable, RoundedVariable):
            variable.spec.check(np.asarray(values[name]))


def stored_parts(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables behind parameters by their names in files: all parts of a `RoundedVariable`."""
    found: dict[str, Any] = {}
    for name, variable in params.items():
        found.update(variable.parts if isinstance(variable, RoundedVariable) else {name: variable})
    return found


class RoundedVariable:
    """Smaller numbers in place of a `tf.Variable`: it is assigned, read and converted to a tensor as one of float32.

    Operators are those of the tensor.

    :param arrays: variables for the parts of the specification
    """

    #: Operators of numpy's arrays leave it to those here.
    __array_priority__ = 100

    def __init__(self, spec: RoundedSpec, arrays: Sequence[Any]) -> None:
        self.spec = spec
        self.arrays = tuple(arrays)
        self.name: str = spec.param.name
        self.trainable = False

    @classmethod
    def of_value(cls, spec: RoundedSpec, value: NDArray[Any]) -> RoundedVariable:
        """Return a new one with a value."""
        with tf.device(spec.param.device):
            return cls(spec, [tf.Variable(in_large_pages(part), trainable=False) for part in spec.stored(value)])

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
        for part, stored in zip(self.arrays, self.spec.stored(np.asarray(value))):
            part.assign(in_large_pages(stored))

    def numpy(self) -> NDArray[np.float32]:
        """Return the rounded value."""
        spec = self.spec
        value = spec.kind.restored([array.numpy() for array in self.arrays], spec.width, spec.depth)
        return (value if spec.by_rows else value.T).reshape(spec.param.shape)

    def matrix(self) -> RoundedMatrix:
        """Return it as a matrix [depth, channels], read where this is called."""
        numbers, *scales = map(tf.convert_to_tensor, self.arrays)
        return self.spec.kind(numbers, self.spec.depth, self.spec.width, *scales)

    def read_value(self) -> Any:
        """Return the rounded value as a tensor."""
        values = self.matrix().values()
        return tf.reshape(tf.transpose(values) if self.spec.by_rows else values, self.spec.param.shape)

    @property
    def parts(self) -> dict[str, Any]:
        """Return the variables of the arrays by their names in files."""
        return dict(zip(self.spec.parts, self.arrays))

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
    setattr(RoundedVariable, "__%s__" % _name, _of_tensor("__%s__" % _name))
