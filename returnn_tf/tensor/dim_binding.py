"""Dims that the user declares for axes of a result, and the dims that the layer infers there.

A declared dim whose lengths nothing defines becomes the inferred one: from then on its name means that dim, and the
inferred dim has its name as well. A declared dim with known lengths takes the place of the inferred one in the output:
the lengths must be the same, which is checked while the network runs where the plan can't know it. Lengths of the same
origin may differ by roundings, as those of a convolution and its inverse; the axis is cut or extended to the size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from returnn_tf.config.errors import DimError
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.dim import EXTERN_PREFIX, Dim
from returnn_tf.tensor.dim_expr import added, terms_of
from returnn_tf.tensor.dim_names import DimNames
from returnn_tf.tensor.match import union_of_axes


class DeclaredDims:
    """The dims that the user declared for one network, and their definitions.

    Other networks may give them other definitions, so the dims themselves do not know any of this.

    :param inputs: the templates of the inputs, by data key
    :param sized: declared dims -> the dims with the sizes that the inputs give them
    """

    def __init__(self, inputs: Mapping[str, Data], sized: Mapping[Dim, Dim]) -> None:
        self.names = DimNames()
        self._inputs = inputs
        self._definitions = dict(sized)
        #: The dims of inputs that no config declared, by the names with which programs that write configs declare them.
        self._automatic = {d.description: d for data in inputs.values() for d in data.dims if _is_automatic(d)}
        #: Declared dims whose lengths a layer defines -> its path; a layer of a loop is planned several times.
        self._owners: dict[Dim, str] = {}
        #: Dims whose lengths vary with the frames of others -> the dims that these lengths have as axes.
        self._lengths_over: dict[Dim, tuple[Dim, ...]] = {}

    def set_lengths_over(self, dim: Dim, over: Sequence[Dim]) -> None:
        """Declare the axes of the lengths of a dim where these are others than the batch axis alone."""
        self._lengths_over[dim] = tuple(over)

    def lengths_over(self, dim: Dim) -> Optional[tuple[Dim, ...]]:
        """Return the axes of the lengths of a dim that vary with the frames of other dims; None if they do not."""
        if dim in self._lengths_over or dim.expr is None:
            return self._lengths_over.get(dim)
        parts = [self.lengths_over(operand) for operand in dim.expr.args]
        return None if all(part is None for part in parts) else union_of_axes([part or () for part in parts])

    def is_by_sequence(self, dim: Dim) -> bool:
        """Return whether the lengths of a dynamic dim are known to differ by sequence: they follow from an input."""
        if self.lengths_over(dim) is not None:
            return False
        if dim.expr is not None:
            return any(self.is_by_sequence(operand) for operand in dim.expr.args if operand.is_dynamic())
        inputs = [data for data in self._inputs.values() if data.batch_axis is not None]
        return any(self.resolve(dim) is self.resolve(axis) for data in inputs for axis in data.dims)

    def resolve(self, dim: Dim) -> Dim:
        """Return the definition of a declared dim, or the dim itself."""
        if dim.without_priority is not None:
            return self.resolve(dim.without_priority).with_priority(dim.match_priority)
        while True:
            before, dim = dim, dim.declared()
            if dim not in self._definitions and _is_automatic(dim):
                dim = self._automatic.get(dim.description, dim)
            dim = self._definitions.get(dim, dim).with_operands(self.resolve)
            if dim is before:
                return dim

    def _with_given_name(self, dim: Dim) -> str:
        """Return a dim as text, with the name under which the user declared it."""
        given = next((str(key) for key, value in self._definitions.items() if value is dim), str(dim))
        return given if given == str(dim) else "%s, which is %s," % (given, dim)

    def definitions(self) -> Mapping[Dim, Dim]:
        """Return the definitions of the declared dims that have one."""
        return self._definitions

    def known(self, path: str, dim: Dim, deps: Sequence[Data]) -> bool:
        """Return whether something other than a layer defines the lengths of a dim.

        :param path: of the layer
        :param deps: the templates of what the layer needs
        """
        if dim.size is not None or dim.is_batch:
            return True
        if any(dim in data.dims for data in self._inputs.values()):
            return True
        if dim in self._owners:
            return self._owners[dim] != path
        if dim.expr is not None:
            return all(self.known(path, operand, deps) for operand in dim.expr.args)
        return any(dim in data.dims for data in deps)

    def bind(self, path: str, declared: Dim, definition: Dim, deps: Sequence[Data], replaced: dict[Dim, Dim]) -> Dim:
        """Bind a dim that the user declared to the one that a layer inferred.

        :param path: of the layer
        :param deps: the templates of what the layer needs
        :param replaced: gets the declared dim by the inferred one if it takes its place in the output
        :return: the dim for the layer to continue with
        :raises ConfigError: the sizes differ
        """
        declared = self.resolve(declared)
        if declared is definition:
            return definition
        if declared.match_priority:
            base = declared.unprioritized()
            bound = self.bind(path, base, definition.unprioritized(), deps, replaced)
            if bound in replaced:
                replaced[bound.with_priority(declared.match_priority)] = declared
            return bound.with_priority(declared.match_priority)
        known = self.known(path, declared, deps)
        if known and declared.size != definition.size:
            raise DimError("the declared dim %s does not match, the result has %s there." % (declared, definition))
        if declared.size is not None:
            return declared
        if known:
            if always_differ(declared, definition):
                raise DimError(
                    "the declared dim %s does not match, the result has %s there. Declare another dim for this axis."
                    % (self._with_given_name(declared), definition)
                )
            replaced[definition] = declared
            return definition
        if definition.size is not None and definition.auto:
            definition = Dim(declared.kind, definition.size, declared.description)
        elif declared.expr is None and _is_made_up(definition) and not self.known(path, definition, deps):
            self._owners[declared] = path
            return declared  # the layer made up its dim, so the user's own serves as well
        if self.resolve(definition) is not declared:
            self._definitions[declared] = definition
        self.names.add(definition, declared.description)
        return definition


def _is_made_up(dim: Dim) -> bool:
    return dim.auto and dim.expr is None and dim.size is None


def _is_automatic(dim: Dim) -> bool:
    return dim.description.startswith(EXTERN_PREFIX) and dim.is_dynamic()


def have_same_origin(a: Dim, b: Dim) -> bool:
    """Return whether the lengths of two dims follow from those of the same dims, so that the plan can compare them."""
    return _origins(a) == _origins(b)


def always_differ(a: Dim, b: Dim) -> bool:
    """Return whether the lengths of two dims of the same origin differ by more than roundings and their margins."""
    if a.size is not None or not have_same_origin(a, b):
        return False
    difference = added(terms_of(a), terms_of(b), -1)
    if not any(difference):  # a number, without dims
        return bool(difference)
    x, y = _size_at(a, _MANY), _size_at(b, _MANY)
    return bool(abs(x - y) > 0.01 * max(x, y))


#: Frames of all dynamic axes, for a comparison of lengths.
_MANY = 1_000_000


def _origins(dim: Dim) -> set[Dim]:
    """Return the dynamic dims without an expression that the lengths follow from."""
    if dim.expr is None:
        return set() if dim.size is not None else {dim}
    return set().union(*map(_origins, dim.expr.args))


def _size_at(dim: Dim, frames: int) -> int:
    """Return the size where all dynamic dims without an expression have this one."""
    if dim.size is not None or dim.expr is None:
        return frames if dim.size is None else dim.size
    return int(dim.expr.evaluate(lambda operand: _size_at(operand, frames), max))
