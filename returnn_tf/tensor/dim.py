"""Dimensions as symbols: a kind, a static size or none, a description, or an expression over other dims.

Two dims are equal because they were declared as the same object, or because they are the same expression over the same
dims; never because their sizes happen to agree. A `Dim` holds no tensor: the lengths of a dynamic dim are a value of
the lowering, looked up by dim, and those of a derived dim are computed from its expression.
"""

from __future__ import annotations

import enum
from typing import Any, Callable, Optional, Union
from weakref import WeakValueDictionary


class DimKind(enum.Enum):
    """The role of a dim."""

    BATCH = "batch"
    SPATIAL = "spatial"
    FEATURE = "feature"
    #: The steps of a loop, for layers of the loop that are computed for all steps at once: names such as "T" or
    #: "spatial" never denote it, so that a layer refers to the same axes inside and outside of the loop.
    LOOP = "loop"


# name -> (integer function for sizes and lengths, display form). `size` and `amount` are ints or integer arrays.
_INT_OPS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "add": (lambda a, b: a + b, "%s+%s"),
    "sub": (lambda a, b: a - b, "%s-%s"),
    "mul": (lambda a, b: a * b, "%s*%s"),
    "ceildiv": (lambda a, b: -(-a // b), "ceil(%s/%s)"),
    "floordiv": (lambda a, b: a // b, "floor(%s/%s)"),
}


class DimExpr:
    """An operation on dims and ints, e.g. ``ceil(time / 2)``. Lengths never become negative."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, args: tuple[Union[Dim, int], ...]) -> None:
        self.op = op
        self.args = args

    def evaluate(self, value_of: Callable[[Dim], Any], maximum: Callable[[Any, int], Any]) -> Any:
        """Return the value, given the values of the operands.

        :param value_of: Dim -> int or integer array/tensor
        :param maximum: elementwise maximum of a value and an int
        """
        func, _ = _INT_OPS[self.op]
        first, *rest = (value_of(a) if isinstance(a, Dim) else a for a in self.args)
        for other in rest:
            first = func(first, other)
        return maximum(first, 0) if self.op == "sub" else first

    def __str__(self) -> str:
        if self.op == "add" and self.args[-1] == 0:  # another kind of the same axis
            return _brief(self.args[0])
        _, pattern = _INT_OPS[self.op]
        text = _brief(self.args[0])
        for other in self.args[1:]:
            text = pattern % (text, _brief(other))
        return text


class Dim:
    """One dimension.

    :param kind: batch, spatial or feature
    :param size: static size, or None if it is dynamic (different from batch to batch)
    :param description: the name displayed to users, e.g. in `returnn-tf check`; also searched by ``stag:`` axis names
    :param expr: expression of a derived dim; such dims are created with the operators, not with the constructor
    :param auto: created by the program for a number such as `n_out`, not declared by the user: it agrees with every
        static dim of its size
    """

    __slots__ = ("__weakref__", "auto", "description", "expr", "kind", "size")

    def __init__(
        self,
        kind: DimKind = DimKind.SPATIAL,
        size: Optional[int] = None,
        description: str = "",
        expr: Optional[DimExpr] = None,
        auto: bool = False,
    ) -> None:
        self.auto: bool = auto or (expr is not None and any(isinstance(a, Dim) and a.auto for a in expr.args))
        self.kind = kind
        self.size = size
        self.description = description
        self.expr = expr

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

    def as_kind(self, kind: DimKind, description: str = "") -> Dim:
        """Return a new dim of the same static size and another kind; a dynamic one keeps its lengths."""
        if kind is self.kind:
            return self
        if self.size is not None:
            return Dim(kind, self.size, description or self.description, auto=True)
        return self._derive("add", 0, kind=kind)

    def agrees_with(self, other: Dim) -> bool:
        """Return whether both are declared equal, or one was created anonymously with the other's static size."""
        if self is other:
            return True
        if self.is_batch or other.is_batch:
            return False
        return self.size is not None and self.size == other.size and (self.auto or other.auto)

    def ceildiv_right(self, by: int) -> Dim:
        """Return ``ceil(self / by)``; repeated division folds, and dividing a multiple gives the dim back."""
        if by == 1:
            return self
        base, factor = self._split_op("mul")
        if base is not None and factor % by == 0:
            return base * (factor // by)
        base, factor = self._split_op("ceildiv")
        return self._derive("ceildiv", by) if base is None else base._derive("ceildiv", by * factor)

    def _split_op(self, op: str) -> tuple[Optional[Dim], int]:
        """Return (operand, int) if this dim is ``operand <op> int``, else (None, 0)."""
        if self.expr is not None and self.expr.op == op and isinstance(self.expr.args[-1], int):
            first = self.expr.args[0]
            if isinstance(first, Dim) and first.kind is self.kind:
                return first, self.expr.args[-1]
        return None, 0

    def floordiv_right(self, by: int) -> Dim:
        """Return ``floor(self / by)``."""
        return self if by == 1 else self._derive("floordiv", by)

    def __add__(self, other: Union[Dim, int]) -> Dim:
        return self if _is_int(other, 0) else self._derive("add", other)

    def __radd__(self, other: int) -> Dim:
        return self + other

    def __sub__(self, other: Union[Dim, int]) -> Dim:
        return self if _is_int(other, 0) else self._derive("sub", other)

    def __mul__(self, other: Union[Dim, int]) -> Dim:
        return self if _is_int(other, 1) else self._derive("mul", other)

    def __rmul__(self, other: int) -> Dim:
        return self * other

    def __floordiv__(self, other: int) -> Dim:
        return self.floordiv_right(other)

    def _derive(self, op: str, *others: Union[Dim, int], kind: Optional[DimKind] = None) -> Dim:
        """Return the derived dim; the same expression over the same dims is always the same object."""
        args: tuple[Union[Dim, int], ...] = (self,) + others
        if op in ("add", "sub") and isinstance(others[0], int) and kind is None:
            return self._shifted(others[0] if op == "add" else -others[0])
        kind = kind or self.kind
        sizes = [a.size if isinstance(a, Dim) else a for a in args]
        key = (op, tuple(a if isinstance(a, int) else id(a) for a in args), kind)
        dim = _derived.get(key)
        if dim is None:
            expr = DimExpr(op, args)
            size = None
            if all(s is not None for s in sizes):
                static: dict[int, Any] = {id(a): a.size for a in args if isinstance(a, Dim)}
                size = expr.evaluate(lambda d: static[id(d)], max)
            dim = Dim(kind, size, "", expr)
            _derived[key] = dim
        return dim

    def _shifted(self, amount: int) -> Dim:
        """Return ``self + amount``.

        A grown dim folds, ``(t+1)+1 = t+2``, ``(t+1)-1 = t``; a shrunk one does not, since it was clipped at 0.
        """
        base, grown = self._split_op("add")
        if base is None:
            base, grown = self, 0
        amount += grown
        if amount == 0:
            return base
        op, amount = ("add", amount) if amount >= 0 else ("sub", -amount)
        return base._derive_interned(op, amount)

    def with_operands(self, func: Callable[[Dim], Dim]) -> Dim:
        """Return a derived dim with every operand replaced by ``func(operand)``; itself if nothing changes."""
        if self.expr is None:
            return self
        args = tuple(func(a) if isinstance(a, Dim) else a for a in self.expr.args)
        if all(new is old for new, old in zip(args, self.expr.args)):
            return self
        first, *others = args
        assert isinstance(first, Dim)
        return first._derive(self.expr.op, *others, kind=None if first.kind is self.kind else self.kind)

    def _derive_interned(self, op: str, amount: int) -> Dim:
        key = (op, (id(self), amount), self.kind)
        dim = _derived.get(key)
        if dim is None:
            expr = DimExpr(op, (self, amount))
            size = None if self.size is None else expr.evaluate(lambda d: d.size, max)
            dim = Dim(self.kind, size, "", expr)
            _derived[key] = dim
        return dim

    def __str__(self) -> str:
        name = _brief_name(self)
        if self.size is not None:
            return "%s=%d" % (name, self.size) if name else str(self.size)
        return name or ("batch" if self.is_batch else "?")

    def __repr__(self) -> str:
        return "Dim{%s %s}" % (self.kind.value, self)


# Operands live as long as the derived dim refers to them, so their ids stay valid while the entry does.
_derived: WeakValueDictionary[Any, Dim] = WeakValueDictionary()


def _is_int(value: Any, expected: int) -> bool:
    return isinstance(value, int) and value == expected


def _brief(value: Union[Dim, int]) -> str:
    if isinstance(value, int):
        return str(value)
    return _brief_name(value) or str(value)


#: Descriptions of the automatic dims of `extern_data`; ``stag:`` names in configs search this text.
EXTERN_PREFIX = "time:var:extern_data:"


def _brief_name(dim: Dim) -> str:
    if dim.description.startswith(EXTERN_PREFIX):
        key = dim.description[len(EXTERN_PREFIX) :]
        return "time" if key == "data" else "time:%s" % key
    return dim.description or (str(dim.expr) if dim.expr else "")


def SpatialDim(description: str = "", dimension: Optional[int] = None) -> Dim:
    """Return a time or other spatial dim; dynamic without ``dimension``."""
    return Dim(DimKind.SPATIAL, dimension, description)


def FeatureDim(description: str = "", dimension: Optional[int] = None) -> Dim:
    """Return a feature (channel) dim."""
    return Dim(DimKind.FEATURE, dimension, description)


batch_dim = Dim(DimKind.BATCH, None, "batch")
#: Marks a loop without an axis: one step (see the `rec` layer).
single_step_dim = Dim(DimKind.SPATIAL, None, "single-step")
