"""The sequences of a dataset that each of several processes reads."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.config import Config
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed.world import World
from returnn_tf.tensor import parse_extern_data

SEQS = 7


class _Rank(World):
    """One of several processes, without a connection to the others."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


def _source(name: str, rank: int, size: int) -> DataSource:
    seqs = [{"data": np.full((2, 1), number, "float32")} for number in range(SEQS)]
    config = Config({name: {"class": "StaticDataset", "data": seqs, "input_dim": 1}, "batch_size": 4})
    return DataSource(config, name, parse_extern_data({"data": {"dim": 1}}), _Rank(rank, size))


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_given_order_is_shared_out(reverse: bool, size: int) -> None:
    """As a search does it: each sequence is read by one process, all processes have as many, in the order given."""
    order = np.arange(SEQS)[:: -1 if reverse else 1]
    read = []
    for rank in range(size):
        source = _source("search_data", rank, size)
        batches = source.batches(1, seq_order=source.share(order)) if len(source.share(order)) else []
        read.append([index for batch in batches for index in batch.seq_indices])
    assert sorted(index for part in read for index in part) == list(range(SEQS))
    assert max(map(len, read)) - min(map(len, read)) <= 1
    assert all(part == sorted(part, reverse=reverse) for part in read)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_order_of_the_dataset_is_shared_out(size: int) -> None:
    """Where none is given, as in evaluation."""
    sources = [_source("dev", rank, size) for rank in range(size)]
    read = [int(value) for source in sources for batch in source.batches(1) for value in batch.feed["data"][:, 0, 0]]
    assert sorted(read) == list(range(SEQS))
