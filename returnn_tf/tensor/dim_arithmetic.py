"""Sums, products and quotients of dims, which are dims again: the same object for equal expressions."""

from __future__ import annotations

from typing import Any, Callable, Optional, TypeVar, Union
from weakref import WeakValueDictionary

from returnn_tf.tensor.dim_expr import (
    DimExpr,
    QuotientExpr,
    SumExpr,
    Terms,
    added,
    divided,
    multiplied,
    terms_of,
    without_factor,
)
from returnn_tf.tensor.dim_kind import DimKind

_D = TypeVar("_D", bound="DimArithmetic")

# The operands are part of the keys, and the derived dim refers to them: an entry lives as long as its dim.
_derived_dims: WeakValueDictionary[Any, Any] = WeakValueDictionary()


class DimArithmetic:
    """The operators of a `Dim`, its only subclass.

    :ivar kind: of the result too
    :ivar size: static size, or None
    :ivar expr: of a derived dim
    :ivar description: kept by a dim of another kind
    """

    __slots__ = ()

    kind: DimKind
    size: Optional[int]
    expr: Optional[DimExpr]
    description: str

    def as_kind(self: _D, kind: DimKind, description: str = "") -> _D:
        """Return a new dim of the same static size and another kind; a dynamic one keeps its lengths."""
        if kind is self.kind:
            return self
        if self.size is not None:
            return self._made(kind, self.size, description or self.description, auto=True)
        return self._derived(QuotientExpr(self, 1, up=True), kind)

    def __add__(self: _D, other: Union[_D, int]) -> _D:
        return self._of(added(terms_of(self), _operand(other)))

    def __sub__(self: _D, other: Union[_D, int]) -> _D:
        return self._of(added(terms_of(self), _operand(other), -1))

    def __rsub__(self: _D, other: int) -> _D:
        return self._of(added(_operand(other), terms_of(self), -1))

    def __mul__(self: _D, other: Union[_D, int]) -> _D:
        return self._of(multiplied(terms_of(self), _operand(other)))

    def __floordiv__(self: _D, other: Union[_D, int]) -> _D:
        return self.floordiv_right(other)

    def __truediv__(self: _D, other: Union[_D, int]) -> _D:
        return self.floordiv_right(other)

    def __neg__(self: _D) -> _D:
        return self * -1

    __radd__ = add_left = add_right = __add__
    sub_left = sub_right = __sub__
    __rmul__ = mul_right = __mul__

    def mul_left(self: _D, other: Union[_D, int]) -> _D:
        """Return ``other * self``."""
        return self._of(multiplied(_operand(other), terms_of(self)))

    def ceildiv_right(self: _D, by: Union[_D, int]) -> _D:
        """Return ``ceil(self / by)``; repeated division folds, and dividing a multiple gives the dim back."""
        return self._quotient(by, up=True, left=False)

    def ceildiv_left(self: _D, by: Union[_D, int]) -> _D:
        """Return ``ceil(self / by)``; of a product it removes the first factor."""
        return self._quotient(by, up=True, left=True)

    def floordiv_right(self: _D, by: Union[_D, int]) -> _D:
        """Return ``floor(self / by)``."""
        return self._quotient(by, up=False, left=False)

    def floordiv_left(self: _D, by: Union[_D, int]) -> _D:
        """Return ``floor(self / by)``; of a product it removes the first factor."""
        return self._quotient(by, up=False, left=True)

    #: Division of dims whose sizes are multiples.
    div_right, div_left = floordiv_right, floordiv_left

    def _quotient(self: _D, by: Union[_D, int], *, up: bool, left: bool) -> _D:
        if not _operand(by) or (isinstance(by, int) and by < 0):
            raise ValueError("%s can only be divided by a positive number, not by %s." % (self, by))
        exact = None if isinstance(by, int) else without_factor(terms_of(self), by, left=left)
        if exact is None and isinstance(by, DimArithmetic) and by.size is not None:
            by = by.size  # of a static divisor only the size counts
        if exact is None and isinstance(by, int):
            exact = divided(terms_of(self), by)
        if exact is not None:
            return self._of(exact)
        inner = self.expr
        if isinstance(inner, QuotientExpr) and inner.up is up and isinstance(by, int) and isinstance(inner.by, int):
            operand: _D = inner.dim
            return operand._quotient(inner.by * by, up=up, left=left).as_kind(self.kind)
        return self._derived(QuotientExpr(self, by, up), self.kind)

    def _of(self: _D, terms: Terms) -> _D:
        """Return the dim of a polynomial, of this kind: an operand alone is itself."""
        if len(terms) == 1:
            ((factors, coefficient),) = terms.items()
            if coefficient == 1 and len(factors) == 1:
                operand: _D = factors[0]
                if operand.kind is self.kind or operand.size is None:
                    return operand.as_kind(self.kind)
        return self._derived(SumExpr(terms), self.kind)

    def with_operands(self: _D, func: Callable[[_D], _D]) -> _D:
        """Return a derived dim with every operand replaced by ``func(operand)``; itself if nothing changes."""
        if self.expr is None or all(func(a) is a for a in self.expr.args):
            return self
        return self._of(self.expr.rebuilt(func))

    def _derived(self: _D, expr: DimExpr, kind: DimKind) -> _D:
        """Return the dim of an expression, always the same object."""
        key = type(expr), expr.key, kind
        dim: Optional[_D] = _derived_dims.get(key)
        if dim is None:
            size = None
            if all(a.size is not None for a in expr.args):
                size = (
                    expr.evaluate(lambda d: d.size, max)
                    if expr.args
                    else max(sum(expr.terms.values()) if isinstance(expr, SumExpr) else 0, 0)
                )
            dim = _derived_dims[key] = self._made(kind, size, "", expr, auto=not expr.args)
        return dim

    def _made(self: _D, *args: Any, **options: Any) -> _D:
        cls: Callable[..., _D] = type(self)
        return cls(*args, **options)


def _operand(value: Any) -> Terms:
    if isinstance(value, bool) or not isinstance(value, (int, DimArithmetic)):
        raise TypeError("A dim can be combined with dims and ints, not with %r." % (value,))
    return terms_of(value)
