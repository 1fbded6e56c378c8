"""The names by which code for RETURNN asks dims: they are those of our class, once the room is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.compat.imports.stand_ins import COMPAT
from returnn_tf.compat.views.names_of_dims import NAMES
from returnn_tf.tensor import (
    Dim,
    DimKind,
    FeatureDim,
    ImplicitDim,
    ImplicitDynSizeDim,
    ImplicitSparseDim,
    MarkedDim,
    OptionalDim,
    SpatialDim,
    batch_dim,
)


def test_names() -> None:
    dim = Dim(kind=Dim.Types.Feature, description="x", dimension=3)
    assert (dim.kind, dim.dimension, dim.description) == (DimKind.FEATURE, 3, "x")
    assert dim.is_feature_dim() and not dim.is_spatial_dim() and batch_dim.is_batch_dim()
    assert dim.dyn_size is None and SpatialDim("t").dyn_size is None
    assert all(vars(Dim)[name] is value for name, value in NAMES.items())


def test_is_equal() -> None:
    a, b, c = SpatialDim("a"), SpatialDim("b"), FeatureDim("c", 4)
    assert not a.is_equal(b)
    a.declare_same_as(b)
    assert a.is_equal(b) and (a + 1).is_equal(b + 1) and not a.is_equal(c)
    assert batch_dim.is_equal(batch_dim)


@pytest.mark.parametrize("module", ["returnn.tensor", "returnn.tensor.dim", "returnn.tf.util.data"])
@pytest.mark.parametrize(
    "args, options",
    [
        ((4,), {"name": "f", "kind": DimKind.FEATURE, "match_priority": 1}),
        ((), {"dimension": 4, "description": "f", "kind": DimKind.FEATURE, "match_priority": 1}),
    ],
)
def test_constructor(module: str, args: Any, options: Any) -> None:
    dim = COMPAT[module].Dim(*args, **options)
    assert (dim.kind, dim.dimension, dim.description) == (DimKind.FEATURE, 4, "f")
    assert dim.match_priority == 1


def test_old_order_of_arguments() -> None:
    dim = COMPAT["returnn.tf.util.data"].DimensionTag(DimKind.FEATURE, "f", 4)
    assert (dim.kind, dim.description, dim.dimension) == (DimKind.FEATURE, "f", 4)


@pytest.mark.parametrize("module", ["returnn.tensor", "returnn.tensor.marked_dim", "returnn.tf.util.data"])
def test_marked_dims(module: str) -> None:
    home = COMPAT[module]
    for cls in (ImplicitDim, ImplicitDynSizeDim, ImplicitSparseDim, MarkedDim, OptionalDim):
        assert getattr(home, cls.__name__) is cls
        mark = cls(batch_dim)
        assert isinstance(mark, MarkedDim) and mark.tag is batch_dim and {mark} == {cls(batch_dim)}
    assert len({ImplicitDim(batch_dim), ImplicitDynSizeDim(batch_dim), OptionalDim(batch_dim)}) == 3
