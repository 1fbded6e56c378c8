"""``from returnn.tf.util.basic import ...`` (once TFUtil): helpers for tensors in the functions of configs.

The functions are those of `returnn_tf.compat.helpers`; see `__getattr__`.
"""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.helpers.gradients import custom_gradient
from returnn_tf.compat.helpers.names import HELPERS
from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.initializers import get_initializer
from returnn_tf.compat.modules.op_code import OpCodeCompiler
from returnn_tf.compat.modules.tensors import (
    Data,
    Dim,
    DimensionTag,
    FeatureDim,
    SpatialDim,
    batch_dim,
    single_step_dim,
)
from returnn_tf.compat.views.layer_view import OutputWithActivation

register_compat(__name__, "returnn.tf.util.basic", "TFUtil")
register_compat(__name__, "returnn.tf.util")

__all__ = [
    "Data",
    "Dim",
    "DimensionTag",
    "FeatureDim",
    "OpCodeCompiler",
    "OutputWithActivation",
    "SpatialDim",
    "batch_dim",
    "custom_gradient",
    "get_initializer",
    "single_step_dim",
    *sorted(HELPERS),
]


def __getattr__(name: str) -> Any:
    if name in HELPERS:
        return HELPERS[name]
    raise AttributeError("module 'returnn.tf.util.basic' has no attribute %r" % name)
