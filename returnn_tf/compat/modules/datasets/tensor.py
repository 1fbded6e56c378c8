"""``from returnn.tensor import Dim, Tensor, TensorDict, batch_dim``, also from its parts."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules import tensors
from returnn_tf.compat.modules.tensors import (
    ImplicitDim,
    ImplicitDynSizeDim,
    ImplicitSparseDim,
    MarkedDim,
    OptionalDim,
    batch_dim,
    single_step_dim,
)
from returnn_tf.datasets.combining.mapper import NamedTensor, TensorDict

register_compat(__name__, "returnn.tensor")
for _part in ("dim", "tensor", "tensor_dict", "marked_dim"):
    register_compat(__name__, "returnn.tensor.%s" % _part)

__all__ = [
    "Dim",
    "ImplicitDim",
    "ImplicitDynSizeDim",
    "ImplicitSparseDim",
    "MarkedDim",
    "OptionalDim",
    "Tensor",
    "TensorDict",
    "batch_dim",
    "single_step_dim",
]

#: What functions for PostprocessingDataset make; networks make their tensors themselves.
Tensor = NamedTensor


class Dim(tensors.Dim):
    """Creates a dim of ours: ``Dim(40, name="features")``, ``Dim(None, name="time", kind=Dim.Types.Spatial)``."""

    def __new__(cls, dimension: Any = None, *, name: str = "", **others: Any) -> Any:
        """Return a dim of ours.

        :param dimension: None or, where the lengths are known at run time, a tensor
        """
        if isinstance(dimension, NamedTensor):
            name, dimension = name or dimension.name, None
        return tensors.Dim(dimension, name=name, **others)
