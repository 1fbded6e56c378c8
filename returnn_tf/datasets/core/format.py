"""The data keys of a dataset, and the format of each."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from returnn_tf.datasets.core.choosing import ChosenOfCorpus
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.window import stack_frames

#: What stands in HDF files for the names of labels that have none.
LABEL_PLACEHOLDER = "dummy-label"


class CorpusWithFormat(ChosenOfCorpus):
    """Formats of the data of a dataset, under the names that configs and users know; see ``base.Dataset``."""

    data_specs: dict[str, DataSpec] = {}

    @property
    def data_keys(self) -> list[str]:
        """Return all data keys."""
        return list(self.data_specs)

    @property
    def target_list(self) -> list[str]:
        """Return all data keys but "data"."""
        return [key for key in self.data_specs if key != "data"]

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, before ``window``; a dict where a dataset says more."""
        return dict(self._dims_by_key())

    def _dims_by_key(self) -> dict[str, tuple[int, int]]:
        window = self.opts.window
        return {key: (spec.dim // (window if key == "data" else 1), spec.ndim) for key, spec in self.data_specs.items()}

    @property
    def all_outputs(self) -> dict[str, Any]:
        """Return ``num_outputs`` with all data keys, also those which some datasets leave out there."""
        return {**self._dims_by_key(), **self.num_outputs}

    @property
    def num_inputs(self) -> int:
        """Return the dim of "data", before ``window``; 0 if there is no such key."""
        declared = self.all_outputs.get("data")
        return int(declared[0]) if isinstance(declared, (tuple, list)) else 0

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        return {key: list(spec.labels) for key, spec in self.data_specs.items() if spec.labels is not None}

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Return `labels` of the keys where each class has a name; many HDF files have a placeholder instead."""
        named = {key: names for key, names in self.labels.items() if names and list(names) != [LABEL_PLACEHOLDER]}
        dims = {key: self.data_specs[key].dim for key in named if key in self.data_specs}
        # HDF files have the dim 1 where it was not known
        return {key: names for key, names in named.items() if dims.get(key, 0) in (0, 1, len(names))}

    def stored_dtype(self, key: str) -> str:
        """Return the type in which a copy of the dataset stores a data key."""
        return self.data_specs[key].dtype

    @property
    def leaves_out(self) -> str:
        """Return the option that lets an epoch lack sequences of its order; empty: none."""
        return "skip_broken_seqs" if self.opts.skip_broken_seqs else ""

    def with_window(self, data: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Apply the option ``window`` to key "data"."""
        if self.opts.window > 1 and "data" in data:
            data = {**data, "data": stack_frames(data["data"], self.opts.window)}
        return data
