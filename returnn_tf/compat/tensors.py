"""``from returnn.tf.util.data import Dim, Data, ...``: dims and templates, created with the arguments of configs."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.compat_modules import register_compat
from returnn_tf.graph.views.data_view import DataView
from returnn_tf.tensor import Data as _Data
from returnn_tf.tensor import Dim as _Dim
from returnn_tf.tensor import (
    DimKind,
    FeatureDim,
    ImplicitDim,
    OptionalDim,
    SpatialDim,
    batch_dim,
    parse_data_key,
    single_step_dim,
)

register_compat(__name__, "returnn.tf.util.data")

__all__ = [
    "Data",
    "Dim",
    "DimensionTag",
    "FeatureDim",
    "ImplicitDim",
    "OptionalDim",
    "SpatialDim",
    "batch_dim",
    "single_step_dim",
]


class _Types:
    """The kinds of dims."""

    Unspecified = None
    Batch = DimKind.BATCH
    Spatial = DimKind.SPATIAL
    Time = DimKind.SPATIAL
    Feature = DimKind.FEATURE


class _IsDim(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Dim)


class Dim(metaclass=_IsDim):
    """Creates a dim of ours: ``Dim(kind=Dim.Types.Spatial, description="time", dimension=None)``.

    :param others: values known at run time only, such as dyn_size; not used
    """

    Types = _Types

    def __new__(cls, kind: Any = None, description: str = "", dimension: Optional[int] = None, **others: Any) -> Any:
        """Return a dim of ours."""
        return _Dim(kind or DimKind.SPATIAL, dimension, description or "")


DimensionTag = Dim


class _IsData(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (_Data, DataView))


class Data(metaclass=_IsData):
    """Creates a template of ours from the options of ``extern_data``: ``Data(name="x", shape=(None, 40), ...)``.

    :raises ConfigError: an option is wrong; names it
    """

    def __new__(cls, name: str = "data", **options: Any) -> Any:
        """Return a template of ours."""
        given: dict[str, Any] = {key: value for key, value in options.items() if key not in ("placeholder", "beam")}
        return parse_data_key(name, given)
