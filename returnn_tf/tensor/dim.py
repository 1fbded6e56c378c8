"""Dimensions as symbols: a kind, a static size or none, a description, or an expression over other dims.

Two dims are equal because they were declared as the same object, or because they are the same expression over the same
dims; never because their sizes happen to agree. A `Dim` holds no tensor: the lengths of a dynamic dim are a value of
the lowering, looked up by dim, and those of a derived dim are computed from its expression.
"""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.tensor.dim_arithmetic import DimArithmetic
from returnn_tf.tensor.dim_expr import DimExpr, terms_of
from returnn_tf.tensor.dim_kind import DimKind
from returnn_tf.tensor.dim_text import brief_name


class Dim(DimArithmetic):
    """One dimension.

    Sums, differences, products and quotients with other dims and ints are dims, the same object for equal expressions:
    ``a + a is 2 * a``. Left and right forms such as `ceildiv_left` differ only for products, in the end of the factors
    that a quotient removes.

    :param kind: batch, spatial or feature
    :param size: static size, or None if it is dynamic (different from batch to batch)
    :param description: the name displayed to users, e.g. in `returnn-tf check`; also searched by ``stag:`` axis names
    :param expr: expression of a derived dim; such dims are created with the operators, not with the constructor
    :param auto: created by the program for a number such as `n_out`, not declared by the user: it agrees with every
        static dim of its size
    :param dimension: the size, by the name that configs use
    """

    __slots__ = ("__weakref__", "auto", "description", "expr", "kind", "labels_of", "same_as", "size")

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
        self.size = dimension if size is None else size
        self.description = description or ""
        self.expr = expr
        #: The dim that a config declared this one to be, see `declare_same_as`.
        self.same_as: Optional[Dim] = None
        #: Of labels: a dim whose labels have the same indices, which this one replaced.
        self.labels_of: Optional[Dim] = None

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

    @property
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
        dim = self
        while dim.same_as is not None:
            dim = dim.same_as
        return dim.with_operands(Dim.declared)

    # --- text ---

    def __str__(self) -> str:
        name = brief_name(self)
        if self.size is not None:
            return "%s=%d" % (name, self.size) if name else str(self.size)
        return name or ("batch" if self.is_batch else "?")

    def __repr__(self) -> str:
        return "Dim{%s %s}" % (self.kind.value, self)
