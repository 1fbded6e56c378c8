"""``from returnn.tf.util.data import Dim, Data, ...``: dims and templates, created with the arguments of configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.contexts import BatchInfo, ControlFlowContext
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.names_of_dims import Types, dim_of_lengths
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.user_code import config_in_use
from returnn_tf.tensor import Data as _Data
from returnn_tf.tensor import Dim as _Dim
from returnn_tf.tensor import (
    DimKind,
    FeatureDim,
    ImplicitDim,
    ImplicitDynSizeDim,
    ImplicitSparseDim,
    MarkedDim,
    OptionalDim,
    SpatialDim,
    batch_dim,
    parse_data_key,
    single_step_dim,
)
from returnn_tf.tensor.match import common_layout

register_compat(__name__, "returnn.tf.util.data")

__all__ = [
    "BatchInfo",
    "ControlFlowContext",
    "Data",
    "Dim",
    "DimensionTag",
    "FeatureDim",
    "ImplicitDim",
    "ImplicitDynSizeDim",
    "ImplicitSparseDim",
    "MarkedDim",
    "OptionalDim",
    "SpatialDim",
    "batch_dim",
    "single_step_dim",
]


class _IsDim(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Dim)


class Dim(metaclass=_IsDim):
    """Creates a dim of ours: ``Dim(kind=Dim.Types.Spatial, description="time", dimension=None)``, ``Dim(4, name="f")``.

    :param first: the kind, or the size as in `returnn.tensor`
    :param others: values known at run time only, such as dyn_size; not used
    """

    Types = Types
    get_tag_from_size_tensor = staticmethod(dim_of_lengths)

    def __new__(
        cls,
        first: Union[DimKind, int, None] = None,
        description: Optional[str] = None,
        dimension: Optional[int] = None,
        *,
        kind: Optional[DimKind] = None,
        name: Optional[str] = None,
        match_priority: int = 0,
        **others: Any,
    ) -> Any:
        """Return a dim of ours."""
        if isinstance(first, DimKind):
            kind = first
        elif first is not None:
            dimension = first
        dim = _Dim(kind or DimKind.SPATIAL, dimension, description or name or "")
        for key in ("dyn_size_ext", "batch", "control_flow_ctx", "vocab"):
            if others.get(key) is not None:
                setattr(dim, key, others[key])
        return dim.with_priority(match_priority)


DimensionTag = Dim


def float_dtype_in_use() -> str:
    """Return the type of floats in the network of the config in use."""
    config = config_in_use()
    return "float32" if config is None else NetworkSettings(config).float_dtype


#: Attributes that are set on the template; all others are options of ``extern_data``.
_ATTRIBUTES = ("placeholder", "size_placeholder", "beam")
#: What is known to the network without being said.
_NOT_NEEDED = ("auto_create_placeholders", "batch", "control_flow_ctx", "available_for_inference", "undefined")


def template_of(name: str, options: Mapping[str, Any]) -> _Data:
    """Return the template that code of a config describes.

    Such code uses its dims in any network, so one that gets its size here has it everywhere.

    :param options: those of a data key
    """
    sized: dict[_Dim, _Dim] = {}
    template = parse_data_key(name, options, float_dtype=float_dtype_in_use(), sized=sized)
    for dim, definition in sized.items():
        dim.declare_same_as(definition)
    return template


class _IsData(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (_Data, DataView))


class Data(metaclass=_IsData):
    """Creates a template of ours from the options of ``extern_data``: ``Data(name="x", shape=(None, 40), ...)``.

    :param options: also ``placeholder``, the tensor, and ``size_placeholder``, lengths by axis without batch
    :raises ConfigError: an option is wrong; names it
    """

    def __new__(cls, name: str = "data", **options: Any) -> Any:
        """Return a template of ours."""
        given = {key: value for key, value in options.items() if key not in _ATTRIBUTES + _NOT_NEEDED}
        dtype = given.get("dtype")
        if dtype is not None:
            given["dtype"] = getattr(dtype, "name", dtype)
        view = DataView(template_of(name, given), options.get("placeholder"), name=name)
        view.size_placeholder = options.get("size_placeholder")
        if options.get("beam") is not None:
            view.beam = options["beam"]
        view.batch, view.control_flow_ctx = options.get("batch"), options.get("control_flow_ctx")
        view.available_for_inference = options.get("available_for_inference", True)
        return view

    @staticmethod
    def from_tensor(x: Any) -> Any:
        """Return the view of a tensor whose axes are all static."""
        dims = [_Dim(DimKind.SPATIAL, size, "axis%d" % i, auto=True) for i, size in enumerate(x.shape.as_list())]
        return DataView(_Data(tuple(dims), x.dtype.name), x, name="tensor")

    @staticmethod
    def get_common_data(sources: Any, **options: Any) -> Any:
        """Return the view with the most axes, as a template to which the others can be broadcast."""
        del options
        views = list(sources)
        common = common_layout([view.template for view in views], allow_broadcast_all=True)
        return views[0].with_template(common) if views else None
