"""``from returnn.datasets.map import MapDatasetBase``: sequences by index, for classes of configs."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets.combining.map_dataset import FromListDataset, MapDatasetBase, MapDatasetWrapper

register_compat(__name__, "returnn.datasets.map", "MapDataset")

__all__ = ["FromListDataset", "MapDatasetBase", "MapDatasetWrapper"]
