"""``from returnn.datasets.postprocessing import LaplaceOrdering, ...``."""

from __future__ import annotations

from returnn_tf.config.compat_modules import register_compat
from returnn_tf.datasets.combining.mapping.postprocessing import PostprocessingDataset
from returnn_tf.datasets.combining.mapping.stream_functions import LaplaceOrdering, Sequential

register_compat(__name__, "returnn.datasets.postprocessing")

__all__ = ["LaplaceOrdering", "PostprocessingDataset", "Sequential"]
