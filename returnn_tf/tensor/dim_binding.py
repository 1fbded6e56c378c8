"""Dims that the user declares for axes of a result, and the dims that the layer infers there.

A declared dim whose lengths nothing defines becomes the inferred one: from then on its name means that dim, and the
inferred dim has its name as well. A declared dim with known lengths takes the place of the inferred one in the output;
the axis is then cut or extended to its size.
"""

from __future__ import annotations

from typing import Any, Protocol

from returnn_tf.config import ConfigError
from returnn_tf.tensor.dim import Dim
from returnn_tf.tensor.dim_names import DimNames

#: The `Node` of a layer, of a higher floor.
Owner = Any


class DeclaredDims(Protocol):
    """The part of the compiler that knows the dims of the network."""

    dim_names: DimNames

    def bind_dim(self, declared: Dim, definition: Dim) -> None:
        """Replace the declared dim by its definition from now on."""

    def take_dim(self, owner: Owner, dim: Dim) -> None:
        """Register that a layer defines the lengths of a dim."""

    def knows_dim(self, owner: Owner, dim: Dim) -> bool:
        """Return whether something other than this layer defines the lengths of a dim."""

    def resolve_dim(self, dim: Dim) -> Dim:
        """Return the definition of a declared dim, or the dim itself."""


def bind(dims: DeclaredDims, owner: Owner, replaced: dict[Dim, Dim], declared: Dim, definition: Dim) -> Dim:
    """Bind a dim that the user declared to the one that a layer inferred.

    :param replaced: gets the declared dim by the inferred one if it takes its place in the output
    :return: the dim for the layer to continue with
    :raises ConfigError: the sizes differ
    """
    declared = dims.resolve_dim(declared)
    if declared is definition:
        return definition
    known = dims.knows_dim(owner, declared)
    if known and declared.size != definition.size:
        raise ConfigError("the declared dim %s does not match, the result has %s there." % (declared, definition))
    if declared.size is not None:
        return declared
    if known:
        replaced[definition] = declared
        return definition
    if definition.size is not None and definition.auto:
        definition = Dim(declared.kind, definition.size, declared.description)
    elif declared.expr is None and _is_made_up(definition) and not dims.knows_dim(owner, definition):
        dims.take_dim(owner, declared)
        return declared  # the layer made up its dim, so the user's own serves as well
    dims.bind_dim(declared, definition)
    dims.dim_names.add(definition, declared.description)
    return definition


def _is_made_up(dim: Dim) -> bool:
    return dim.auto and dim.expr is None and dim.size is None
