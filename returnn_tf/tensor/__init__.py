"""`Dim` and `Data`: templates of tensors, without values."""

from returnn_tf.tensor.axes import AxisDesc, resolve_axes, resolve_axis
from returnn_tf.tensor.data import DTYPES, NUMERIC_DTYPES, Beam, Data
from returnn_tf.tensor.dim import (
    Dim,
    DimKind,
    FeatureDim,
    SpatialDim,
    batch_dim,
    single_step_dim,
)
from returnn_tf.tensor.dim_expr import DimExpr
from returnn_tf.tensor.expected_dims import (
    ImplicitDim,
    ImplicitDynSizeDim,
    ImplicitSparseDim,
    MarkedDim,
    OptionalDim,
)
from returnn_tf.tensor.extern_data import (
    SEQ_TAG,
    empty_data_keys,
    extern_data_options,
    parse_data_key,
    parse_extern_data,
)

__all__ = [
    "AxisDesc",
    "DTYPES",
    "NUMERIC_DTYPES",
    "Beam",
    "Data",
    "Dim",
    "DimExpr",
    "DimKind",
    "FeatureDim",
    "ImplicitDim",
    "ImplicitDynSizeDim",
    "ImplicitSparseDim",
    "MarkedDim",
    "OptionalDim",
    "SEQ_TAG",
    "SpatialDim",
    "batch_dim",
    "empty_data_keys",
    "extern_data_options",
    "parse_data_key",
    "parse_extern_data",
    "resolve_axes",
    "resolve_axis",
    "single_step_dim",
]
