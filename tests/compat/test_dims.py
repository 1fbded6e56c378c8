"""The names by which code for RETURNN asks dims: they are those of our class, once the room is loaded."""

from __future__ import annotations

from returnn_tf.compat.views.names_of_dims import NAMES
from returnn_tf.tensor import Dim, DimKind, FeatureDim, SpatialDim, batch_dim


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
