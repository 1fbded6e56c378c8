"""``from returnn.datasets.postprocessing import LaplaceOrdering, ...``."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets.combining.mapper import LaplaceOrdering, Sequential
from returnn_tf.datasets.combining.postprocessing import PostprocessingDataset

register_compat(__name__, "returnn.datasets.postprocessing")

__all__ = ["LaplaceOrdering", "PostprocessingDataset", "Sequential"]
