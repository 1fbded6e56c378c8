"""Datasets of ours with the interface of RETURNN's, for scripts and for code of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.compat.numbers_dict import NumbersDict
from returnn_tf.compat.user_datasets.epoch_view import EpochView
from returnn_tf.compat.user_datasets.interface import DatasetInterface
from returnn_tf.config.errors import CodeDataError
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.share import Chosen


class DatasetView(DatasetInterface):
    """Reads the epochs of a dataset by position: ``init_seq_order``, ``load_seqs``, ``get_data``, ...

    :param dataset: what it reads; its other attributes are found here, too
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.epoch: Optional[int] = None
        self._reader: Optional[EpochReader] = None
        self._start = 0

    def __repr__(self) -> str:
        return repr(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __dataset__(self) -> Any:
        """Return the class and options of the dataset, for its use in a config."""
        return type(self.dataset), self.dataset.given

    # ---- format

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name of the dataset."""
        return self.dataset.name

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        """Return the dim of "data"."""
        return self.dataset.num_inputs

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key."""
        return self.dataset.num_outputs

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return the names of labels by key."""
        return self.dataset.labels

    def get_data_keys(self) -> list[str]:
        """Return all keys."""
        return self.dataset.data_keys

    def get_target_list(self) -> list[str]:
        """Return the keys of targets."""
        return self.dataset.target_list

    def get_data_dim(self, key: str) -> int:
        """Return the feature dim or the number of labels of a key."""
        return self.dataset.data_specs[key].dim

    def get_data_dtype(self, key: str) -> str:
        """Return the type of a key."""
        return self.dataset.data_specs[key].dtype

    def get_data_shape(self, key: str) -> list[Optional[int]]:
        """Return the sizes of the axes after time."""
        return list(self.dataset.data_specs[key].shape)

    def is_data_sparse(self, key: str) -> bool:
        """Return whether a key holds label indices."""
        return self.dataset.data_specs[key].sparse

    # ---- corpus

    def get_total_num_seqs(self) -> int:
        """Return the number of sequences of the corpus.

        :raises NotImplementedError: it is endless or a stream
        """
        if self.dataset.num_seqs is None:
            raise NotImplementedError("%r: the number of sequences is unknown" % self)
        return self.dataset.num_seqs

    def get_all_tags(self) -> list[str]:
        """Return the tags of the corpus; NotImplementedError if its number is unknown."""
        return [self.dataset.tag(index) for index in range(self.get_total_num_seqs())]

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the position in the corpus of a sequence of the epoch."""
        return self._opened.index(seq_idx)

    def get_current_seq_order(self) -> list[int]:
        """Return the order of the epoch: positions in the corpus."""
        return [self._opened.index(position) for position in range(self.num_seqs)]

    # ---- epochs

    def initialize(self) -> None:
        """Do nothing: the dataset is ready."""

    def init_seq_order(
        self,
        epoch: Optional[int] = None,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
    ) -> bool:
        """Begin an epoch; given sequences replace those that the dataset chooses.

        :param epoch: from 1; None ends the epoch before
        """
        self.finish_epoch()
        self.epoch = epoch
        if epoch is not None or seq_list is not None or seq_order is not None:
            self._reader = self.dataset.open_epoch(epoch or 1, self.dataset.data_keys, Chosen(seq_list, seq_order))
        return True

    @property
    def _opened(self) -> EpochReader:
        if self._reader is None:
            raise CodeDataError("%r: init_seq_order(epoch=...) has to be called first" % self)
        return self._reader

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences of the epoch; NotImplementedError if it is not known yet."""
        number = self._opened.num_seqs
        if number is None:
            raise NotImplementedError("%r: the number of sequences is not known before the end" % self)
        return number

    @property
    def estimated_num_seqs(self) -> Optional[int]:
        """Return the number of sequences of the epoch, exact or estimated."""
        number = None if self._reader is None else self._reader.num_seqs
        return self.dataset.opts.estimated_num_seqs if number is None else number

    def is_less_than_num_seqs(self, n: int) -> bool:
        """Return whether the epoch has a sequence at this position."""
        return self._opened.has(n)

    def have_seqs(self) -> bool:
        """Return whether the epoch has any sequence."""
        return self.is_less_than_num_seqs(0)

    def load_seqs(self, start: int, end: int) -> None:
        """Load the sequences start..end-1, and drop those before."""
        self._opened.release(start)
        self._start = start
        EpochView(self._opened).load_seqs(start, end)

    def _checked(self, seq_idx: int) -> EpochReader:
        if seq_idx < self._start:
            raise CodeDataError(
                "%r: sequence %d is not loaded; those before %d are dropped" % (self, seq_idx, self._start)
            )
        return self._opened

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return an array of a sequence, [time, ...]."""
        return self._checked(seq_idx).sequence(seq_idx).data[key]

    def get_tag(self, sorted_seq_idx: int) -> str:
        """Return the name of a sequence."""
        return self._checked(sorted_seq_idx).tag(sorted_seq_idx)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return frames by key."""
        return NumbersDict(self._checked(seq_idx).lengths(seq_idx))

    def get_complete_frac(self, sorted_seq_idx: int, **_: Any) -> Optional[float]:
        """Return the fraction of the epoch that is done with a sequence, None if unknown."""
        return self._checked(sorted_seq_idx).complete(sorted_seq_idx)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._start = None, 0
