"""The dims that configs declare."""

from __future__ import annotations

from typing import Optional

from returnn_tf.tensor.dim import Dim
from returnn_tf.tensor.dim_kind import DimKind


def SpatialDim(description: str = "", dimension: Optional[int] = None) -> Dim:
    """Return a time or other spatial dim; dynamic without ``dimension``."""
    return Dim(DimKind.SPATIAL, dimension, description)


def FeatureDim(description: str = "", dimension: Optional[int] = None) -> Dim:
    """Return a feature (channel) dim."""
    return Dim(DimKind.FEATURE, dimension, description)


batch_dim = Dim(DimKind.BATCH, None, "batch")
#: Marks a loop without an axis: one step (see the `rec` layer).
single_step_dim = Dim(DimKind.SPATIAL, None, "single-step")
