"""``from returnn.tf.util.data import Dim, Data, ...``: dims and templates, made with the arguments of configs."""

from __future__ import annotations

from typing import Any, Dict, Optional

from returnn_tf.config.foreign_modules import register_foreign
from returnn_tf.graph.views import DataView
from returnn_tf.tensor import Data as _Data
from returnn_tf.tensor import Dim as _Dim
from returnn_tf.tensor import DimKind, FeatureDim, SpatialDim, batch_dim, parse_data_key, single_step_dim

register_foreign(__name__, "returnn.tf.util.data")

__all__ = ["Data", "Dim", "DimensionTag", "FeatureDim", "SpatialDim", "batch_dim", "single_step_dim"]


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
    """``Dim(kind=Dim.Types.Spatial, description="time", dimension=None)`` makes a dim of ours."""

    Types = _Types

    def __new__(cls, kind: Any = None, description: str = "", dimension: Optional[int] = None, **others: Any) -> Any:
        """
        :param others: what is known at run time only, such as dyn_size; not used
        """
        return _Dim(kind or DimKind.SPATIAL, dimension, description or "")


DimensionTag = Dim


class _IsData(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (_Data, DataView))


class Data(metaclass=_IsData):
    """``Data(name="x", shape=(None, 40), ...)`` makes a template of ours from the options of ``extern_data``."""

    def __new__(cls, name: str = "data", **options: Any) -> Any:
        """
        :raises ConfigError: names the option which is wrong
        """
        given: Dict[str, Any] = {key: value for key, value in options.items() if key not in ("placeholder", "beam")}
        return parse_data_key(name, given)
