"""What datasets share that show the format or the sequences of one inner dataset."""

from __future__ import annotations

from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.datasets.core.base import Dataset


class FormatOfInner(Dataset):
    """A dataset whose data keys are those of an inner one."""

    inner: Dataset

    @property
    def format_source(self) -> Dataset:
        """Return the dataset whose format this one has."""
        return self.inner

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, as the inner dataset declares them."""
        return self.format_source.num_outputs

    @property
    def target_list(self) -> list[str]:
        """Return the targets of the inner dataset."""
        return self.format_source.target_list


class CorpusOfInner(Dataset):
    """A dataset whose sequences are those of the dataset ``inner``."""

    inner: Dataset

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences of the inner dataset."""
        return self.inner.num_seqs

    @property
    def endless(self) -> bool:
        """Return whether the inner dataset is endless."""
        return self.inner.endless

    def tag(self, index: int) -> str:
        """Return the tag in the inner dataset."""
        return self.inner.tag(index)

    def file_of(self, index: int) -> str:
        """Return the file in the inner dataset."""
        return self.inner.file_of(index)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return the order of the inner dataset; None: endless, or a stream."""
        return None if self.is_stream else self.inner.seq_order(epoch)
