"""The feature axis after axes were removed, merged or exchanged. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.data import default_feature_axis


def with_feature_default(data: Data) -> Data:
    """Mark the feature axis of dense data that lacks one by the default rule."""
    if data.feature_axis is not None or data.sparse_dim is not None or data.version == 2:
        return data
    return data.replace(feature_axis=default_feature_axis(data.dims, data.time_axis))


def product(dims: Sequence[Dim]) -> Dim:
    """Return the dim of axes merged in this order. Of anonymous dims, only the size counts."""
    result = dims[0]
    for dim in dims[1:]:
        is_number = result.size is None and dim.auto and dim.size is not None
        result = result * (dim.size if is_number else dim)  # type: ignore[operator]
    return result


def index_of(axis: Optional[int], axes: Sequence[int]) -> Optional[int]:
    """Return the index of an axis if these axes are kept, in this order; None if it is gone."""
    return list(axes).index(axis) if axis in axes else None  # type: ignore[arg-type]
