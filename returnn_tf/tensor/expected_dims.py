"""Marks for the dims in ``out_shape``, and the check of a template against that option."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Callable, Optional, Union

from returnn_tf.config.errors import DimError
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.dim import Dim


@dataclasses.dataclass(frozen=True)
class ImplicitDim:
    """In ``out_shape``: a dim that the output depends on without having it as an axis.

    That is the batch dim where the lengths of another axis differ by sequence, and the dim that sparse values index.
    """

    tag: Dim


@dataclasses.dataclass(frozen=True)
class OptionalDim:
    """In ``out_shape``: a dim that the output may have."""

    tag: Dim


def check_dims(
    data: Data, expected: Iterable[Union[Dim, ImplicitDim, OptionalDim]], resolve: Callable[[Dim], Dim]
) -> None:
    """Check that a template has exactly the dims of ``out_shape``, in any order.

    The steps of loops don't count: the option is about one step of a layer, wherever it is computed.

    :param resolve: returns the definition of a declared dim
    :raises ConfigError: a dim is missing, there is another one, or an entry is no dim
    """
    entries = list(expected)
    for entry in entries:
        if not isinstance(entry, (Dim, ImplicitDim, OptionalDim)):
            raise DimError("out_shape must be a set of dims, but it has the entry %r." % (entry,))
    got = [dim for dim in data.dims if not dim.is_loop]
    for entry in sorted(entries, key=lambda entry: isinstance(entry, OptionalDim)):
        dim = resolve(entry if isinstance(entry, Dim) else entry.tag)
        if _is_steps(dim, data):
            continue
        if isinstance(entry, ImplicitDim):
            _check_implicit(data, dim)
            continue
        match = _find(got, dim)
        if match is not None:
            got.remove(match)
        elif not isinstance(entry, OptionalDim):
            raise DimError("out_shape has the dim %s, but the output is %s." % (dim, data))
    if got:
        raise DimError("the output %s has the axis %s, which out_shape lacks." % (data, got[0]))


def _find(dims: list[Dim], dim: Dim) -> Optional[Dim]:
    """Return the same dim, else one of unknown origin that agrees with it."""
    same = (d for d in dims if d is dim or (d.is_batch and dim.is_batch))
    return next(same, None) or next((d for d in dims if d.agrees_with(dim)), None)


def _is_steps(dim: Dim, data: Data) -> bool:
    """Return whether a dim is an axis of the output that holds the steps of a loop."""
    return any(d is dim or (d.expr is not None and d.expr.args[0] is dim) for d in data.dims if d.is_loop)


def _check_implicit(data: Data, dim: Dim) -> None:
    if dim.is_batch:
        fits = any(d.is_dynamic for d in data.dims)
    else:
        fits = data.sparse_dim is not None and data.sparse_dim.agrees_with(dim)
    if not fits:
        raise DimError(
            "out_shape has the implicit dim %s, but neither the lengths nor the labels of the output %s depend on it."
            % (dim, data)
        )
