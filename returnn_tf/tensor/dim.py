"""Dimensions as symbols: a kind, a static size or none, a description, or an expression over other dims.

Two dims are equal because they were declared as the same object, or because they are the same expression over the same
dims; never because their sizes happen to agree. A `Dim` holds no tensor: the lengths of a dynamic dim are a value of
the lowering, looked up by dim, and those of a derived dim are computed from its expression.
"""

from __future__ import annotations

import enum
import numbers
from typing import Any, Callable, Optional, Union
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

#: Descriptions of the automatic dims of `extern_data`; ``stag:`` names in configs search this text.
EXTERN_PREFIX = "time:var:extern_data:"
# The operands are part of the keys, and the derived dim refers to them: an entry lives as long as its dim.
_derived_dims: WeakValueDictionary[Any, Dim] = WeakValueDictionary()


class DimKind(enum.Enum):
    """The role of a dim."""

    BATCH = "batch"
    SPATIAL = "spatial"
    FEATURE = "feature"
    #: The steps of a loop, for layers of the loop that are computed for all steps at once: names such as "T" or
    #: "spatial" never denote it, so that a layer refers to the same axes inside and outside of the loop.
    LOOP = "loop"


class Dim:
    """One dimension.

    Sums, differences, products and quotients with other dims and ints are dims, the same object for equal expressions:
    ``a + a is 2 * a``. Left and right forms such as `ceildiv_left` differ only for products, in the end of the factors
    that a quotient removes.

    A tensor may have a dim twice, such as the weights of a square matrix. `with_priority` then gives one of the axes a
    match priority: the dim means the axis with the higher one, see `Data.axes_of`. For sizes, lengths and arithmetic
    both are the same dim.

    :param kind: batch, spatial or feature
    :param size: static size, or None if it is dynamic (different from batch to batch)
    :param description: the name displayed to users, e.g. in `returnn-tf check`; also searched by ``stag:`` axis names
    :param expr: expression of a derived dim; such dims are created with the operators, not with the constructor
    :param auto: created by the program for a number such as `n_out`, not declared by the user: it agrees with every
        static dim of its size
    :param dimension: the size, by the name that configs use
    """

    __slots__ = (
        "__weakref__", "auto", "description", "expr", "kind", "labels_of", "match_priority", "same_as", "size",
        "without_priority",
    )  # fmt: skip

    def __init__(
        self,
        kind: DimKind = DimKind.SPATIAL,
        size: Optional[int] = None,
        description: str = "",
        expr: Optional[DimExpr] = None,
        auto: bool = False,
        *,
        dimension: Optional[int] = None,
    ) -> None:
        self.auto: bool = auto or (expr is not None and any(a.auto for a in expr.args))
        self.kind = kind
        self.size: Optional[int] = _python_int(dimension if size is None else size)
        self.description = description or ""
        self.expr = expr
        #: The dim that a config declared this one to be, see `declare_same_as`.
        self.same_as: Optional[Dim] = None
        #: Of labels: a dim whose labels have the same indices, which this one replaced.
        self.labels_of: Optional[Dim] = None
        self.match_priority = 0
        #: Of a dim with a match priority: the same dim without one.
        self.without_priority: Optional[Dim] = None

    def __copy__(self) -> Dim:
        return self  # a dim is identified by its object, also in the copy of a network dict

    def __deepcopy__(self, memo: Any) -> Dim:
        return self

    @property
    def is_batch(self) -> bool:
        """Return whether this is a batch dim (sequences, or sequences times beam)."""
        return self.kind is DimKind.BATCH

    @property
    def is_loop(self) -> bool:
        """Return whether this is the axis of the steps of a loop, see `DimKind.LOOP`."""
        return self.kind is DimKind.LOOP

    def is_dynamic(self) -> bool:
        """Return whether the size differs between sequences or batches; never for batch dims."""
        return self.size is None and not self.is_batch

    @property
    def dimension(self) -> Optional[int]:
        """Return the static size, or None; the name configs use."""
        return self.size

    # --- equality ---

    def agrees_with(self, other: Dim, *, strict: bool = False) -> bool:
        """Return whether both are declared equal, or one was created anonymously with the other's static size.

        :param strict: whether then both must have been created anonymously
        """
        if self is other:
            return True
        if self.is_batch or other.is_batch:
            return False
        if self.without_priority is not None or other.without_priority is not None:
            return self.unprioritized().agrees_with(other.unprioritized(), strict=strict)
        if self.size is None and other.size is None and not (self.is_loop or other.is_loop):
            return terms_of(self) == terms_of(other)  # the same lengths as another kind
        auto = (self.auto and other.auto) if strict else (self.auto or other.auto)
        return self.size is not None and self.size == other.size and auto

    def declare_same_as(self, other: Dim) -> None:
        """Declare that this dim is another one, whose place it takes from now on; for code of configs.

        It holds for all networks, as such code has the dims before there are any, and asks the dims themselves. What
        one network finds out about a declared dim is in `DeclaredDims` instead.

        :raises ValueError: the sizes differ
        """
        one, base = self.declared(), other.declared()
        if base.size is None and base.expr is None and (one.size is not None or one.expr is not None):
            one, base = base, one
        if one is base:
            return
        if one.size is not None and base.size is not None and one.size != base.size:
            raise ValueError("declare_same_as: %s and %s have different sizes." % (self, other))
        one.same_as = base

    def declared(self) -> Dim:
        """Return the dim that `declare_same_as` made this one, also for the operands of an expression."""
        if self.without_priority is not None:
            return self.without_priority.declared().with_priority(self.match_priority)
        dim = self
        while dim.same_as is not None:
            dim = dim.same_as
        return dim.with_operands(Dim.declared)

    # --- several axes with one dim ---

    def with_priority(self, match_priority: int) -> Dim:
        """Return this dim with another match priority, always the same object; 0 means none.

        :raises ValueError: it is the batch dim, which no tensor has twice
        """
        base = self.unprioritized()
        if match_priority == base.match_priority:
            return base
        if self.is_batch:
            raise ValueError("A batch dim has no match priority: no tensor has it twice.")
        key = "priority", base, match_priority
        dim: Optional[Dim] = _derived_dims.get(key)
        if dim is None:
            expr = None if base.size is not None else QuotientExpr(base, 1, up=True)
            dim = _derived_dims[key] = Dim(base.kind, base.size, base.description, expr, base.auto)
            dim.match_priority, dim.without_priority = match_priority, base
        return dim

    def copy(
        self,
        same_as_self: bool = True,
        description: str = "",
        kind: Optional[DimKind] = None,
        match_priority: Optional[int] = None,
    ) -> Dim:
        """Return this dim with another kind or match priority, or a new dim of its size.

        :param same_as_self: whether it is still this dim, with its description; a dynamic one is, as it has the lengths
        """
        kind, priority = kind or self.kind, self.match_priority if match_priority is None else match_priority
        if same_as_self or self.size is None:
            return self.as_kind(kind).with_priority(priority)
        return Dim(kind, self.size, description or self.description).with_priority(priority)

    def unprioritized(self) -> Dim:
        """Return this dim without match priority."""
        return self if self.without_priority is None else self.without_priority

    # --- arithmetic ---

    def as_kind(self, kind: DimKind, description: str = "") -> Dim:
        """Return a new dim of the same static size and another kind; a dynamic one keeps its lengths."""
        if kind is self.kind:
            return self
        if self.without_priority is not None:
            return self.without_priority.as_kind(kind, description).with_priority(self.match_priority)
        if self.size is not None:
            return Dim(kind, self.size, description or self.description, auto=True)
        return self._derived(QuotientExpr(self, 1, up=True), kind)

    def __add__(self, other: Union[Dim, int]) -> Dim:
        return self._of(added(terms_of(self), _operand(other)))

    def __sub__(self, other: Union[Dim, int]) -> Dim:
        return self._of(added(terms_of(self), _operand(other), -1))

    def __rsub__(self, other: int) -> Dim:
        return self._of(added(_operand(other), terms_of(self), -1))

    def __mul__(self, other: Union[Dim, int]) -> Dim:
        return self._of(multiplied(terms_of(self), _operand(other)))

    def __floordiv__(self, other: Union[Dim, int]) -> Dim:
        return self.floordiv_right(other)

    def __truediv__(self, other: Union[Dim, int]) -> Dim:
        return self.floordiv_right(other)

    def __neg__(self) -> Dim:
        return self * -1

    __radd__ = add_left = add_right = __add__
    sub_left = sub_right = __sub__
    __rmul__ = mul_right = __mul__

    def mul_left(self, other: Union[Dim, int]) -> Dim:
        """Return ``other * self``."""
        return self._of(multiplied(_operand(other), terms_of(self)))

    def ceildiv_right(self, by: Union[Dim, int]) -> Dim:
        """Return ``ceil(self / by)``; repeated division folds, and dividing a multiple gives the dim back."""
        return self._quotient(by, up=True, left=False)

    def ceildiv_left(self, by: Union[Dim, int]) -> Dim:
        """Return ``ceil(self / by)``; of a product it removes the first factor."""
        return self._quotient(by, up=True, left=True)

    def floordiv_right(self, by: Union[Dim, int]) -> Dim:
        """Return ``floor(self / by)``."""
        return self._quotient(by, up=False, left=False)

    def floordiv_left(self, by: Union[Dim, int]) -> Dim:
        """Return ``floor(self / by)``; of a product it removes the first factor."""
        return self._quotient(by, up=False, left=True)

    #: Division of dims whose sizes are multiples.
    div_right, div_left = floordiv_right, floordiv_left

    def _quotient(self, by: Union[Dim, int], *, up: bool, left: bool) -> Dim:
        by = _python_int(by)
        if not _operand(by) or (isinstance(by, int) and by < 0):
            raise ValueError("%s can only be divided by a positive number, not by %s." % (self, by))
        exact = None if isinstance(by, int) else without_factor(terms_of(self), by, left=left)
        if exact is None and isinstance(by, Dim) and by.size is not None:
            by = by.size  # of a static divisor only the size counts
        if exact is None and isinstance(by, int):
            exact = divided(terms_of(self), by)
        if exact is not None:
            return self._of(exact)
        inner = self.expr
        if isinstance(inner, QuotientExpr) and inner.up is up and isinstance(by, int) and isinstance(inner.by, int):
            operand: Dim = inner.dim
            return operand._quotient(inner.by * by, up=up, left=left).as_kind(self.kind)
        return self._derived(QuotientExpr(self, by, up), self.kind)

    def _of(self, terms: Terms) -> Dim:
        """Return the dim of a polynomial, of this kind: an operand alone is itself."""
        if len(terms) == 1:
            ((factors, coefficient),) = terms.items()
            if coefficient == 1 and len(factors) == 1:
                operand: Dim = factors[0]
                if operand.kind is self.kind or operand.size is None:
                    return operand.as_kind(self.kind)
        return self._derived(SumExpr(terms), self.kind)

    def with_operands(self, func: Callable[[Dim], Dim]) -> Dim:
        """Return a derived dim with every operand replaced by ``func(operand)``; itself if nothing changes."""
        if self.without_priority is not None:
            return self.without_priority.with_operands(func).with_priority(self.match_priority)
        if self.expr is None or all(func(a) is a for a in self.expr.args):
            return self
        return self._of(self.expr.rebuilt(func))

    def _derived(self, expr: DimExpr, kind: DimKind) -> Dim:
        """Return the dim of an expression, always the same object."""
        key = type(expr), expr.key, kind
        dim: Optional[Dim] = _derived_dims.get(key)
        if dim is None:
            size = None
            if all(a.size is not None for a in expr.args):
                size = (
                    expr.evaluate(lambda d: d.size, max)
                    if expr.args
                    else max(sum(expr.terms.values()) if isinstance(expr, SumExpr) else 0, 0)
                )
            dim = _derived_dims[key] = Dim(kind, size, "", expr, auto=not expr.args)
        return dim

    # --- text ---

    def __str__(self) -> str:
        name = brief_name(self)
        if self.size is not None:
            return "%s=%d" % (name, self.size) if name else str(self.size)
        return name or ("batch" if self.is_batch else "?")

    def __repr__(self) -> str:
        return "Dim{%s %s}" % (self.kind.value, self)


def _python_int(value: Any) -> Any:
    """Return an integer of numpy as one of Python, with which sizes are computed; anything else unchanged."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, int) else value


def _operand(value: Any) -> Terms:
    value = _python_int(value)
    if isinstance(value, bool) or not isinstance(value, (int, Dim)):
        raise TypeError("A dim can be combined with dims and ints, not with %r." % (value,))
    return terms_of(value)


def brief_name(dim: Any) -> str:
    """Return the name to show; that of a derived dim has those of its operands. Empty without a name."""
    if dim.description.startswith(EXTERN_PREFIX):
        key = dim.description[len(EXTERN_PREFIX) :]
        return "time" if key == "data" else "time:%s" % key
    if dim.description or dim.expr is None:
        return str(dim.description)
    shown: str = dim.expr.show(lambda operand: brief_name(operand) or str(operand)) if dim.expr.args else ""
    return shown


def SpatialDim(description: str = "", dimension: Optional[int] = None) -> Dim:
    """Return a time or other spatial dim; dynamic without ``dimension``."""
    return Dim(DimKind.SPATIAL, dimension, description)


def FeatureDim(description: str = "", dimension: Optional[int] = None) -> Dim:
    """Return a feature (channel) dim."""
    return Dim(DimKind.FEATURE, dimension, description)


batch_dim = Dim(DimKind.BATCH, None, "batch")
#: Marks a loop without an axis: one step (see the `rec` layer).
single_step_dim = Dim(DimKind.SPATIAL, None, "single-step")
