"""Attributes of RETURNN's dims, which this room adds to our class `Dim` when it is loaded.

Such code gets the dims themselves and not views of them: it declares them, takes them as keys of dicts, and compares
them with those of templates, so that there must be one object for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compat.views import size_tags
from returnn_tf.tensor import Dim, DimKind


class Types:
    """The kinds of dims: ``Dim.Types.Spatial``."""

    Batch = DimKind.BATCH
    Spatial = DimKind.SPATIAL
    Time = DimKind.SPATIAL
    Feature = DimKind.FEATURE
    Unspecified = DimKind.SPATIAL


def lengths_of_dim(dim: Dim) -> Any:
    """Return the lengths, int32 [batch]; None if the dim is static, and while no ops are built."""
    return size_tags.lengths_of(dim.declared()) if dim.is_dynamic else None


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


#: Attribute of `Dim` -> what it is.
NAMES: Mapping[str, Any] = {
    "Types": Types,
    "dyn_size": property(lengths_of_dim),
    "set_tag_on_size_tensor": define_by_lengths,
    "get_tag_from_size_tensor": staticmethod(dim_of_lengths),
    "is_batch_dim": lambda dim: dim.is_batch,
    "is_feature_dim": lambda dim: dim.kind is DimKind.FEATURE,
    "is_spatial_dim": lambda dim: dim.kind is DimKind.SPATIAL,
    "is_equal": is_equal,
}
for _name, _value in NAMES.items():
    setattr(Dim, _name, _value)
