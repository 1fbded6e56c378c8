"""The declaration of a parameter of a cell, and of the parts of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Union

from numpy.typing import NDArray

from returnn_tf.tensor.parts import Part, Parts, equal_parts

INPUT = "input"
"""The label of the part of an axis that holds the input; the layer puts the parts of its sources in its place."""
STATE = "state"
"""The label of the part of an axis that holds the state."""


@dataclass(frozen=True)
class CellParam:
    """A parameter of a cell.

    :param name: below ``<layer>/rec/``
    :param shape: all dims are known
    :param kind: the user's initialiser that applies: "forward", "recurrent", "bias", or "fixed" for none
    :param default: initial value if the user gives no initialiser of that kind: a number, one value for each column, an
        initialiser as configs write it, a function of shape and `numpy.random.Generator`, or None for the general
        default of weights
    :param axes: the parts of each axis, in which a growing network copies the values; see `axes_of` for the default
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    default: Union[None, float, str, NDArray[Any], Callable[..., NDArray[Any]]] = None
    axes: tuple[Parts, ...] = ()


def axes_of(param: CellParam, in_dim: int, n_out: int) -> tuple[Parts, ...]:
    """Return the parts of each axis of a parameter.

    By default the rows of a matrix of kind "forward" are the input, or the input and a state of size n; all other axes
    that n divides are gates of size n.
    """
    if param.axes:
        return param.axes
    axes = [equal_parts(size, n_out, "gate") or whole(size) for size in param.shape]
    if param.kind == "forward" and len(param.shape) == 2:
        rows = {in_dim: input_part(in_dim), in_dim + n_out: [*input_part(in_dim), Part(STATE, n_out)]}
        axes[0] = rows.get(param.shape[0], axes[0])
    return tuple(axes)


def input_part(in_dim: int) -> Parts:
    """Return the parts of an axis that is the input."""
    return [Part(INPUT, in_dim)]


def whole(size: int) -> Parts:
    """Return the parts of an axis that has none."""
    return [Part("", size)]


def by_head(heads: int, size: int, *names: str) -> Parts:
    """Return the parts of an axis with a range of this size for each head, first those of the first name."""
    return [Part("%s of head %d" % (name, head), size) for name in names or ("",) for head in range(heads)]


def taps(count: int) -> Parts:
    """Return the parts of the axis of a filter over the last frames: one for each, the current one last."""
    return [Part("%d frames before" % (count - 1 - i), 1) for i in range(count)]
