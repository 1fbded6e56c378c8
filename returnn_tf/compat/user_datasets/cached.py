"""``CachedDataset2`` and ``GeneratingDataset``: datasets of configs that make one sequence after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compat.user_datasets.base import UserDatasetBase
from returnn_tf.config.errors import CodeDataError, CodeError
from returnn_tf.datasets.core.data_spec import num_frames


class DatasetSeq:
    """The data of one sequence.

    :param seq_idx: position in the epoch
    :param features: array of key "data", or arrays by key
    :param targets: further arrays by key, or the array of key "classes"
    :param seq_tag: name; "seq-<seq_idx>" by default
    :param complete_frac: fraction of the epoch that is done with it, if known
    """

    def __init__(
        self,
        seq_idx: int,
        features: Any,
        targets: Any = None,
        seq_tag: Optional[str] = None,
        complete_frac: Optional[float] = None,
    ):
        self.seq_idx = seq_idx
        self.seq_tag = seq_tag or "seq-%i" % seq_idx
        self.complete_frac = complete_frac
        self.features: dict[str, NDArray[Any]] = _by_key(features, "data")
        if targets is not None:
            self.features.update(_by_key(targets, "classes"))

    def __repr__(self) -> str:
        return "<DatasetSeq %i %r>" % (self.seq_idx, self.seq_tag)

    @property
    def num_frames(self) -> dict[str, int]:
        """Return frames by key."""
        return {key: num_frames(value) for key, value in self.features.items()}

    def get_data(self, key: str) -> NDArray[Any]:
        """Return the array of a key."""
        return self.features[key]

    def get_data_keys(self) -> list[str]:
        """Return the keys."""
        return list(self.features)


def _by_key(value: Any, key: str) -> dict[str, NDArray[Any]]:
    arrays = value if isinstance(value, dict) else {key: value}
    return {name: np.asarray(array) for name, array in arrays.items()}


class CachedDataset2(UserDatasetBase):
    """A dataset that makes its sequences one after the other, each once in an epoch.

    A class implements ``_collect_single_seq(seq_idx)``, which returns a `DatasetSeq`, or None at the end, and sets
    ``num_inputs`` and ``num_outputs`` when it is made; ``init_seq_order`` may set ``_num_seqs``.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._reset()

    def _reset(self) -> None:
        self._num_collected = 0
        self.expected_load_seq_start = 0
        self.reached_final_seq = False
        self.added_data: list[DatasetSeq] = []
        self._num_seqs = None

    def init_seq_order(
        self,
        epoch: Optional[int] = None,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
    ) -> bool:
        """Begin an epoch: forget all sequences and their number."""
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self._reset()
        return True

    def _collect_single_seq(self, seq_idx: int) -> Optional[DatasetSeq]:
        raise NotImplementedError("%s._collect_single_seq" % type(self).__name__)

    def _get_seq(self, seq_idx: int) -> Optional[DatasetSeq]:
        return next((seq for seq in self.added_data if seq.seq_idx == seq_idx), None)

    def _cleanup_old_seqs(self, seq_idx_end: int) -> None:
        self.added_data = [seq for seq in self.added_data if seq.seq_idx >= seq_idx_end]

    def _load_seqs(self, start: int, end: int) -> None:
        if start < self.expected_load_seq_start:
            raise CodeDataError(
                "%s: sequence %d is asked for, but those before %d are dropped"
                % (self, start, self.expected_load_seq_start)
            )
        self.expected_load_seq_start = start
        self._cleanup_old_seqs(start)
        while self._num_collected < end and not self.reached_final_seq:
            if self._num_seqs is not None and self._num_collected >= self._num_seqs:
                return
            self._add(self._num_collected)
            self._cleanup_old_seqs(start)

    def _add(self, seq_idx: int) -> None:
        seq = self._collect_single_seq(seq_idx=seq_idx)
        if seq is None:
            self.reached_final_seq = True
            self._num_seqs = seq_idx
            return
        if not isinstance(seq, DatasetSeq):
            raise CodeError("%s: _collect_single_seq has to return a DatasetSeq or None, not %r" % (self, seq))
        seq.seq_idx = seq_idx
        self.added_data.append(seq)
        self._num_collected += 1

    def is_less_than_num_seqs(self, n: int) -> bool:
        """Return whether the epoch has a sequence at this position, reading up to there if the number is unknown."""
        if self._num_seqs is not None:
            return n < self._num_seqs
        if n >= self._num_collected:
            self._load_seqs(self.expected_load_seq_start, n + 1)
        return n < self._num_collected

    def _loaded(self, seq_idx: int) -> DatasetSeq:
        seq = self._get_seq(seq_idx)
        if seq is None:
            raise CodeDataError("%s: sequence %d is not loaded" % (self, seq_idx))
        return seq

    def _first(self) -> DatasetSeq:
        if not self.added_data:
            if self.epoch is None:
                self.init_seq_order(epoch=1)
            self._load_seqs(self.expected_load_seq_start, self.expected_load_seq_start + 1)
        if not self.added_data:
            raise CodeDataError("%s is empty: it has no sequences" % self)
        return self.added_data[0]

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return an array of a loaded sequence, [time, ...]."""
        return self._loaded(seq_idx).features[key]

    def get_tag(self, sorted_seq_idx: int) -> str:
        """Return the name of a loaded sequence."""
        return self._loaded(sorted_seq_idx).seq_tag

    def get_complete_frac(self, sorted_seq_idx: int, **_: Any) -> Optional[float]:
        """Return the fraction that the sequence states, else that by its number, or None."""
        fraction = self._loaded(sorted_seq_idx).complete_frac
        return super().get_complete_frac(sorted_seq_idx) if fraction is None else fraction

    def get_data_keys(self) -> list[str]:
        """Return the keys of the first sequence, sorted."""
        return sorted(self._first().features)

    def get_target_list(self) -> list[str]:
        """Return all keys but "data"."""
        return [key for key in self.get_data_keys() if key != "data"]

    def is_data_sparse(self, key: str) -> bool:
        """Return whether a key is declared to have one axis, or has one in the first sequence."""
        declared = self._declared()
        return declared[key][1] <= 1 if key in declared else self._first().features[key].ndim == 1

    def get_data_dtype(self, key: str) -> str:
        """Return the type in the first sequence."""
        return str(self._first().features[key].dtype)


class GeneratingDataset(CachedDataset2):
    """A dataset whose sequences the method ``generate_seq(seq_idx)`` makes, with ``self.random`` seeded by the epoch.

    :param input_dim: of key "data", dense
    :param output_dim: number of classes, or key -> dim or (dim, number of axes with time)
    :param num_seqs: endless by default
    """

    def __init__(self, input_dim: Optional[int], output_dim: Any, num_seqs: float = float("inf"), **options: Any):
        super().__init__(**options)
        outputs = dict(output_dim) if isinstance(output_dim, dict) else {"classes": output_dim}
        outputs = {key: tuple(v) if isinstance(v, (list, tuple)) else (v, 1) for key, v in outputs.items()}
        if input_dim is not None and "data" not in outputs:
            outputs["data"] = (input_dim, 2)
        self.num_inputs = input_dim
        self.num_outputs = outputs
        self.random = np.random.RandomState(1)
        self._count = num_seqs
        self._seq_order: Optional[list[int]] = None

    def init_seq_order(
        self,
        epoch: Optional[int] = None,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
    ) -> bool:
        """Begin an epoch: order the sequences, and seed ``random``."""
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self.random.seed(self._get_random_seed_for_epoch(epoch))
        if seq_order is not None:
            self._seq_order = [int(index) for index in seq_order]
        elif seq_list is not None:
            self._seq_order = [int(tag.rpartition("-")[2]) for tag in seq_list]
        elif self._count < float("inf"):
            self._seq_order = self.get_seq_order_for_epoch(epoch, int(self._count))
        else:
            self._seq_order = None
        self._num_seqs = None if self._seq_order is None else len(self._seq_order)
        return True

    def generate_seq(self, seq_idx: int) -> DatasetSeq:
        """Make a sequence.

        :param seq_idx: position in the corpus
        """
        raise NotImplementedError("%s.generate_seq" % type(self).__name__)

    def _collect_single_seq(self, seq_idx: int) -> Optional[DatasetSeq]:
        return self.generate_seq(seq_idx if self._seq_order is None else self._seq_order[seq_idx])
