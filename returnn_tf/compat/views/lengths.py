"""Lengths of axes as user code passes them from one template to another: they remember their dim."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.compat.views import size_tags
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class LengthsOf:
    """Stands for the lengths of a dim while the network is planned, when there is no tensor of them yet."""

    dim: Dim

    @property
    def _returnn_tf_dim(self) -> Dim:
        """Return the dim, by the name that `size_tags` gives it on tensors."""
        return self.dim


def lengths_with_dim(lengths: Any, dim: Dim) -> Any:
    """Return lengths that remember their dim: a tensor of their own."""
    lengths = tf.identity(lengths)
    size_tags.set_dim(lengths, dim)
    return lengths


def dim_of_lengths(lengths: Any) -> Optional[Dim]:
    """Return the dim that the lengths belong to; None if the user computed them."""
    return size_tags.dim_of(lengths)
