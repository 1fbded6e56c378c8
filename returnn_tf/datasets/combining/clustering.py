"""ClusteringDataset: another dataset with the number of a cluster for each sequence."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, DatasetDataError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.combining.base import ChainedEpoch, CombiningDataset, CorpusOfInner, Link
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import read_bytes
from returnn_tf.datasets.core.share import ALL, Chosen

KEY = "cluster_idx"
_ROOTS = ("coprus-key-map", "corpus-key-map")  # the first is how such files are really written


@register_dataset()
class ClusteringDataset(CorpusOfInner, CombiningDataset):
    """Another dataset with the further key ``cluster_idx``, int32 [1]: the cluster of each sequence."""

    takes_default_order = False

    @dataclass
    class Options(CombiningDataset.Options):
        dataset: Any = option(help="the inner dataset")
        cluster_map_file: str = option(help='XML: <corpus-key-map> with <map-item key="tag" value="number"/>')
        n_clusters: int = option(help="number of clusters", check=at_least(1))

    def setup(self) -> None:
        """Create the inner dataset, and read the map."""
        super().setup()
        self.wrap(self.opts.dataset)
        self._clusters = self._read_map()
        self.check_format()

    def _read_map(self) -> dict[str, int]:
        path = self.opts.cluster_map_file
        try:
            root = ElementTree.fromstring(read_bytes(path))
        except ElementTree.ParseError as exc:
            raise DatasetDataError("%s: cluster_map_file %r is no XML: %s" % (self._owner(), path, exc)) from None
        if root.tag not in _ROOTS:
            raise DatasetDataError(
                "%s: cluster_map_file %r: the root is <%s>, not <%s>" % (self._owner(), path, root.tag, _ROOTS[1])
            )
        clusters = {}
        for item in root.iter("map-item"):
            tag, value = item.get("key"), item.get("value") or ""
            if tag is None or not value.isdigit() or int(value) >= self.opts.n_clusters:
                raise DatasetDataError(
                    "%s: cluster_map_file %r: key %r has the value %r, not a number below n_clusters=%d"
                    % (self._owner(), path, tag, value, self.opts.n_clusters)
                )
            clusters[tag] = int(value)
        return clusters

    def cluster(self, tag: str) -> NDArray[Any]:
        """Return the cluster of a sequence, int32 [1]."""
        if tag not in self._clusters:
            raise DatasetDataError(
                "%s: cluster_map_file %r lacks the sequence" % (self._owner(), self.opts.cluster_map_file)
            )
        return np.array([self._clusters[tag]], np.int32)

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the inner dataset and that of the clusters."""
        return {**self.inner.data_specs, KEY: DataSpec(dim=self.opts.n_clusters, ndim=1, dtype="int32")}

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key."""
        return {**self.inner.num_outputs, KEY: (self.opts.n_clusters, 1)}

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where there are some."""
        return {key: names for key, names in self.inner.labels.items() if names}

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return the order of the inner dataset, which some streams know."""
        order: Optional[NDArray[Any]] = self.inner.seq_order(epoch)
        return order

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> ChainedEpoch:
        """Return the sequences of an epoch by position, to be closed."""
        inner = self.inner.open_epoch(epoch, [key for key in keys if key != KEY], chosen.of_all_processes())
        return _ClusteredEpoch(self, epoch, keys, [Link(inner)], chosen.share)


class _ClusteredEpoch(ChainedEpoch):
    """An inner epoch with the key of the clusters."""

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key."""
        return {**super().lengths(position), KEY: 1}

    def sequence(self, position: int) -> Example:
        """Return the sequence at this position."""
        sequence = super().sequence(position)
        if KEY not in self.needed or KEY in sequence.data:
            return sequence
        try:
            data = {**sequence.data, KEY: self.dataset.cluster(sequence.tag)}
        except DataError as exc:
            raise DatasetDataError("%s: %s" % (self.place(position), exc)) from None
        self._kept[position] = dataclasses.replace(sequence, data=data)
        return self._kept[position]
