"""Attributes of RETURNN's dims, which this room adds to our class `Dim` when it is loaded.

Such code gets the dims themselves and not views of them: it declares them, takes them as keys of dicts, and compares
them with those of templates, so that there must be one object for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional
from weakref import WeakKeyDictionary

from returnn_tf.compat.views import size_tags
from returnn_tf.tensor import Dim, DimKind, batch_dim
from returnn_tf.tensor.dim_expr import QuotientExpr, SumExpr


class Types:
    """The kinds of dims: ``Dim.Types.Spatial``."""

    Batch = DimKind.BATCH
    Spatial = DimKind.SPATIAL
    Time = DimKind.SPATIAL
    Feature = DimKind.FEATURE
    Unspecified = DimKind.SPATIAL


def lengths_of_dim(dim: Dim) -> Any:
    """Return the lengths, int32 [batch]; None if the dim is static, and while no ops are built."""
    return size_tags.lengths_of(dim.declared()) if dim.is_dynamic() else None


def dim_of_lengths(x: Any) -> Optional[Dim]:
    """Return the dim that lengths belong to, or None."""
    dim: Optional[Dim] = size_tags.dim_of(x)
    return size_tags.tag_of(x) if dim is None else dim


def define_by_lengths(dim: Dim, x: Any, batch: Any = None) -> Any:
    """Define a dim by lengths, for the axis that gets them by ``size_placeholder``; return them.

    If they are those of another dim already, this dim is declared to be that one.
    """
    del batch
    other = dim_of_lengths(x)
    if other is None:
        size_tags.set_tag(x, dim)
    elif other is not dim:
        dim.declare_same_as(other)
    return x


def is_equal(dim: Dim, other: Dim, **options: Any) -> bool:
    """Return whether both are one dim, or agree in size where one was made up for a number.

    :param options: further ways to be equal; all of them are covered by the rules for dims that were made up
    """
    del options
    one, two = dim.declared(), other.declared()
    return one.agrees_with(two) or (one.is_batch and two.is_batch)


#: What front ends note about dims: templates of lengths, and where these are computed.
_notes: WeakKeyDictionary[Dim, dict[str, Any]] = WeakKeyDictionary()


def _note(name: str) -> property:
    """Return an attribute that a front end may set; None before."""

    def get(dim: Dim) -> Any:
        return _notes.get(dim, {}).get(name)

    def set_to(dim: Dim, value: Any) -> None:
        _notes.setdefault(dim, {})[name] = value

    return property(get, set_to)


def axes_of_lengths(dim: Dim) -> tuple[Dim, ...]:
    """Return the axes of the lengths of a dynamic dim: those that a front end noted, else the batch."""
    noted = _notes.get(dim, {}).get("dyn_size_ext")
    if noted is not None:
        return tuple(noted.dim_tags)
    operands = [] if dim.expr is None else [each for each in dim.expr.args if each.is_dynamic()]
    return tuple(dict.fromkeys(axis for each in operands for axis in axes_of_lengths(each))) or (batch_dim,)


@dataclasses.dataclass(frozen=True)
class Op:
    """The expression of a derived dim, as an operation on dims.

    :param kind: "constant", "add", "mul", "ceildiv_right" or "floordiv_right"
    """

    kind: str
    inputs: Sequence[Dim]
    attribs: Optional[Mapping[str, Any]] = None


def derived_from_op(dim: Dim) -> Optional[Op]:
    """Return the operation that a derived dim is the result of; None for other dims."""
    expr = dim.expr
    if isinstance(expr, QuotientExpr):
        by = _constant(dim, expr.by) if isinstance(expr.by, int) else expr.by
        return Op("ceildiv_right" if expr.up else "floordiv_right", (expr.dim, by))
    if not isinstance(expr, SumExpr):
        return None
    if not expr.args:
        return Op("constant", (), {"value": expr.terms.get((), 0)})
    parts: list[Dim] = []
    for factors, coefficient in expr.terms.items():
        part = [_constant(dim, coefficient)] if coefficient != 1 or not factors else []
        parts.append(_product([*part, *factors]))
    if len(parts) > 1:
        return Op("add", parts)
    ((factors, coefficient),) = expr.terms.items()
    return Op("mul", [*([_constant(dim, coefficient)] if coefficient != 1 else []), *factors])


def _constant(dim: Dim, value: int) -> Dim:
    """Return the dim of a number."""
    return dim * 0 + value


def _product(factors: Sequence[Dim]) -> Dim:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def derived_from_tag(dim: Dim) -> Optional[Dim]:
    """Return the first operand of a derived dim, or None."""
    return dim.expr.args[0] if dim.expr is not None and dim.expr.args else None


def itself(dim: Dim, *args: Any, **options: Any) -> Dim:
    """Return the dim: it is the same one in each batch, loop and branch.

    :param args: a batch and a loop or branch
    """
    del args, options
    return dim


def nothing(dim: Dim, *args: Any, **options: Any) -> None:
    """Do nothing: lengths of derived dims are computed where they are needed."""


#: Attribute of `Dim` -> what it is.
NAMES: Mapping[str, Any] = {
    "Types": Types,
    "dyn_size": property(lengths_of_dim),
    "set_tag_on_size_tensor": define_by_lengths,
    "get_tag_from_size_tensor": staticmethod(dim_of_lengths),
    "is_batch_dim": lambda dim: dim.is_batch,
    "is_feature_dim": lambda dim: dim.kind is DimKind.FEATURE,
    "is_spatial_dim": lambda dim: dim.kind is DimKind.SPATIAL,
    "is_static": lambda dim: dim.size is not None,
    "is_dim_known": lambda dim: True,
    "is_equal": is_equal,
    "auto_generated": property(lambda dim: dim.auto),
    "derived_from_op": property(derived_from_op),
    "derived_from_tag": property(derived_from_tag),
    "get_same_base": Dim.declared,
    "get_for_batch_ctx": itself,
    "get_for_batch": itself,
    "complete_dyn_size": nothing,
    "reset_batch_ctx": nothing,
    "short_repr": str,
    "dyn_size_ext": _note("dyn_size_ext"),
    "batch": _note("batch"),
    "control_flow_ctx": _note("control_flow_ctx"),
    "vocab": _note("vocab"),
}
for _name, _value in NAMES.items():
    setattr(Dim, _name, _value)
