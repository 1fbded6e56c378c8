"""Expressions of derived dims in a normal form, so that equal expressions are recognised: ``a + a`` is ``2 * a``.

An expression is a polynomial of dims with integer coefficients, `SumExpr`, or a rounded quotient, `QuotientExpr`. Dims
that are polynomials themselves are expanded, so that the factors of a polynomial are dims without an expression, or
quotients. The order of the factors counts, as that of merged axes does; that of the summands does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

#: A `Dim`; its module depends on this one.
Operand = Any
#: Coefficients by factors; the constant has no factors. No coefficient is 0.
Terms = Mapping[tuple[Operand, ...], int]
_CONST: tuple[Operand, ...] = ()


class DimExpr:
    """The expression of a derived dim, e.g. ``ceil(time / 2)``. Lengths never become negative.

    :param args: the dims that it is computed from
    """

    __slots__ = ("args",)

    def __init__(self, args: Sequence[Operand]) -> None:
        self.args = tuple(dict.fromkeys(args))

    @property
    def key(self) -> Any:
        """Return the key of the normal form, the same for equal expressions."""
        raise NotImplementedError

    @property
    def grows(self) -> bool:
        """Return whether a larger operand never makes the value smaller."""
        raise NotImplementedError

    def evaluate(self, value_of: Callable[[Operand], Any], maximum: Callable[[Any, int], Any]) -> Any:
        """Return the value, given the values of the operands.

        :param value_of: Dim -> int or integer array/tensor
        :param maximum: elementwise maximum of a value and an int
        """
        raise NotImplementedError

    def rebuilt(self, func: Callable[[Operand], Operand]) -> Terms:
        """Return the terms of the same expression of ``func(operand)`` instead of each operand."""
        raise NotImplementedError

    def show(self, name_of: Callable[[Operand], str]) -> str:
        """Return a text such as ``ceil(time/2)``."""
        raise NotImplementedError


class SumExpr(DimExpr):
    """A polynomial: ``c0 + c1 * a + c2 * a * b + ...``."""

    __slots__ = ("terms",)

    def __init__(self, terms: Terms) -> None:
        super().__init__([factor for factors in terms for factor in factors])
        self.terms = dict(terms)

    @property
    def key(self) -> Any:
        """Return the key of the normal form, the same for equal expressions."""
        return frozenset(self.terms.items())

    @property
    def grows(self) -> bool:
        """Return whether a larger operand never makes the value smaller."""
        return all(coefficient > 0 for factors, coefficient in self.terms.items() if factors)

    def evaluate(self, value_of: Callable[[Operand], Any], maximum: Callable[[Any, int], Any]) -> Any:
        """Return the value, given the values of the operands."""
        total: Any = None
        for factors, coefficient in self.terms.items():
            value: Any = coefficient
            for i, factor in enumerate(factors):
                other = value_of(factor)
                value = other if i == 0 and coefficient == 1 else value * other
            total = value if total is None else total + value
        return maximum(total, 0) if min(self.terms.values()) < 0 else total

    def rebuilt(self, func: Callable[[Operand], Operand]) -> Terms:
        """Return the terms of the same expression of ``func(operand)`` instead of each operand."""
        result: Terms = {}
        for factors, coefficient in self.terms.items():
            product: Terms = {_CONST: coefficient}
            for factor in factors:
                product = multiplied(product, terms_of(func(factor)))
            result = added(result, product)
        return result

    def show(self, name_of: Callable[[Operand], str]) -> str:
        """Return a text such as ``time*2+3``."""
        text = ""
        constant_last = sorted(self.terms.items(), key=lambda item: not item[0])
        for factors, coefficient in constant_last:
            names = [name_of(factor) for factor in factors]
            names += [str(abs(coefficient))] if abs(coefficient) != 1 or not factors else []
            sign = "-" if coefficient < 0 else "+" if text else ""
            text += sign + "*".join(names)
        return text


class QuotientExpr(DimExpr):
    """``a / b``, rounded up or down; ``a / 1`` is ``a`` as a dim of another kind."""

    __slots__ = ("by", "dim", "up")

    def __init__(self, dim: Operand, by: Union[Operand, int], up: bool) -> None:
        super().__init__([dim] if isinstance(by, int) else [dim, by])
        self.dim, self.by, self.up = dim, by, up

    @property
    def key(self) -> Any:
        """Return the key of the normal form, the same for equal expressions."""
        return self.dim, self.by, self.up

    @property
    def grows(self) -> bool:
        """Return whether a larger operand never makes the value smaller."""
        return isinstance(self.by, int)

    def evaluate(self, value_of: Callable[[Operand], Any], maximum: Callable[[Any, int], Any]) -> Any:
        """Return the value, given the values of the operands."""
        value = value_of(self.dim)
        if self.by == 1:
            return value
        by = self.by if isinstance(self.by, int) else maximum(value_of(self.by), 1)
        return -(-value // by) if self.up else value // by

    def rebuilt(self, func: Callable[[Operand], Operand]) -> Terms:
        """Return the terms of the same expression of ``func(operand)`` instead of each operand."""
        by = self.by if isinstance(self.by, int) else func(self.by)
        dim = func(self.dim)
        if by == 1:
            return terms_of(dim)
        return terms_of(dim.ceildiv_right(by) if self.up else dim.floordiv_right(by))

    def show(self, name_of: Callable[[Operand], str]) -> str:
        """Return a text such as ``ceil(time/2)``."""
        if self.by == 1:
            return name_of(self.dim)
        by = str(self.by) if isinstance(self.by, int) else name_of(self.by)
        return "%s(%s/%s)" % ("ceil" if self.up else "floor", name_of(self.dim), by)


def terms_of(value: Union[Operand, int]) -> Terms:
    """Return a dim or a number as a polynomial."""
    if isinstance(value, int):
        return {_CONST: value} if value else {}
    value = value.unprioritized()
    # The steps of a loop have sizes of their own, so they are not replaced by the axis that the loop runs over.
    if isinstance(value.expr, QuotientExpr) and value.expr.by == 1 and not value.is_loop:
        return terms_of(value.expr.dim)
    return dict(value.expr.terms) if isinstance(value.expr, SumExpr) else {(value,): 1}


def added(a: Terms, b: Terms, sign: int = 1) -> Terms:
    """Return ``a + sign * b``."""
    result = dict(a)
    for factors, coefficient in b.items():
        result[factors] = result.get(factors, 0) + sign * coefficient
        if not result[factors]:
            del result[factors]
    return result


def multiplied(a: Terms, b: Terms) -> Terms:
    """Return ``a * b``, with the factors of ``a`` in front."""
    result: Terms = {}
    for factors1, coefficient1 in a.items():
        for factors2, coefficient2 in b.items():
            result = added(result, {factors1 + factors2: coefficient1 * coefficient2})
    return result


def divided(terms: Terms, by: int) -> Optional[Terms]:
    """Return the exact quotient, or None."""
    if any(coefficient % by for coefficient in terms.values()):
        return None
    return {factors: coefficient // by for factors, coefficient in terms.items()}


def without_factor(terms: Terms, factor: Operand, *, left: bool) -> Optional[Terms]:
    """Return the polynomial divided by a dim, the first or last factor of each term; None if one lacks it.

    :param left: whether to take the first factor
    """
    result: dict[tuple[Operand, ...], int] = {}
    for factors, coefficient in terms.items():
        if not factors or factors[0 if left else -1] is not factor:
            return None
        result[factors[1:] if left else factors[:-1]] = coefficient
    return result
