"""The names of dims that ``stag:`` and ``tag:`` search."""

from __future__ import annotations

from returnn_tf.tensor.dim import Dim


class DimNames:
    """Names of dims in one network, besides their descriptions.

    A dim also has the names of the dims that it was declared to be, and of those that it is computed from.
    """

    def __init__(self) -> None:
        self._names: dict[Dim, list[str]] = {}
        self._passed: dict[Dim, list[str]] = {}

    def add(self, dim: Dim, name: str, *, passed: bool = False) -> None:
        """Add a name.

        :param passed: whether it is the name that a layer gives to an axis of its source which it did not change; such
            names count where no other one matches
        """
        (self._passed if passed else self._names).setdefault(dim.unprioritized(), []).append(name.lower())

    def text(self, dim: Dim, *, passed: bool = False) -> str:
        """Return all names in lower case.

        :param passed: with the names of unchanged axes
        """
        dim = dim.unprioritized()
        names = [dim.description.lower(), *self._names.get(dim, ())]
        if passed:
            names += self._passed.get(dim, ())
        if dim.expr is not None:
            names += [self.text(operand, passed=passed) for operand in dim.expr.args]
        return " ".join(names)


NO_NAMES = DimNames()
