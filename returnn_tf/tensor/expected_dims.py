"""Marks for the dims in ``out_shape``, and the check of a template against that option."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Callable, Optional, Union

from returnn_tf.config.errors import DimError
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.dim import Dim


@dataclasses.dataclass(frozen=True)
class MarkedDim:
    """In ``out_shape``: a dim with a mark; the common part of all marks."""

    tag: Dim


class ImplicitDim(MarkedDim):
    """In ``out_shape``: a dim that the output depends on without having it as an axis.

    That is the batch dim where the lengths of another axis differ by sequence, and the dim that sparse values index.
    """


class ImplicitDynSizeDim(ImplicitDim):
    """In ``out_shape``: a dim that the lengths of an axis depend on."""


class ImplicitSparseDim(ImplicitDim):
    """In ``out_shape``: the dim that sparse values index."""


class OptionalDim(MarkedDim):
    """In ``out_shape``: a dim that the output may have."""


def check_dims(
    data: Data,
    expected: Iterable[Union[Dim, MarkedDim]],
    resolve: Callable[[Dim], Dim],
    by_sequence: Callable[[Dim], bool],
) -> None:
    """Check that a template has exactly the dims of ``out_shape``, in any order.

    The batch dim is among them by a mark where there is no batch axis, but lengths that differ by sequence. The steps
    of loops don't count: the option is about one step of a layer, wherever it is computed.

    :param resolve: returns the definition of a declared dim
    :param by_sequence: returns whether the lengths of a dynamic dim differ by sequence
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
            _check_implicit(data, entry, dim)
            continue
        match = _find(got, dim)
        if match is not None:
            got.remove(match)
        elif not isinstance(entry, OptionalDim):
            raise DimError("out_shape has the dim %s, but the output is %s." % (dim, data))
    if got:
        twice = any(got[0].agrees_with(dim) for dim in data.dims if dim is not got[0]) or data.dims.count(got[0]) > 1
        hint = " It has this dim twice: mark one of both axes by dim.copy(match_priority=1)." if twice else ""
        raise DimError("the output %s has the axis %s, which out_shape lacks.%s" % (data, got[0], hint))
    if data.batch_axis is None and not any(isinstance(entry, MarkedDim) and entry.tag.is_batch for entry in entries):
        lengths = next((d for d in data.dims if d.is_dynamic() and not d.is_loop and by_sequence(d)), None)
        if lengths is not None:
            raise DimError(
                "the output %s has no batch axis, but the lengths of %s differ by sequence, so out_shape needs an "
                "implicit batch dim. Add ImplicitDynSizeDim(batch_dim)." % (data, lengths)
            )


def _find(dims: list[Dim], dim: Dim) -> Optional[Dim]:
    """Return the same dim, else one of unknown origin that agrees with it."""
    same = (d for d in dims if d is dim or (d.is_batch and dim.is_batch))
    return next(same, None) or next((d for d in dims if d.agrees_with(dim)), None)


def _is_steps(dim: Dim, data: Data) -> bool:
    """Return whether a dim is an axis of the output that holds the steps of a loop."""
    return any(d is dim or (d.expr is not None and d.expr.args[0] is dim) for d in data.dims if d.is_loop)


def _check_implicit(data: Data, mark: ImplicitDim, dim: Dim) -> None:
    of_lengths = any(d.is_dynamic() for d in data.dims)
    of_labels = data.sparse_dim is not None and data.sparse_dim.agrees_with(dim)
    if isinstance(mark, ImplicitDynSizeDim):
        fits, what = of_lengths, "no lengths of the output %s depend on it"
    elif isinstance(mark, ImplicitSparseDim):
        fits, what = of_labels, "the values of the output %s are no labels of it"
    else:
        fits = of_lengths if dim.is_batch else of_labels
        what = "neither the lengths nor the labels of the output %s depend on it"
    if not fits:
        raise DimError("out_shape has the implicit dim %s, but %s." % (dim, what % data))
