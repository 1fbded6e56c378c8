"""Batches in memory shared with the loading process: the same values, nothing copied, nothing kept."""

from __future__ import annotations

import contextlib
import gc
import os
from typing import Any

import numpy as np
import pytest

from returnn_tf.datasets import BatchLoader, Dataset
from returnn_tf.datasets.loading import loader as loading
from returnn_tf.datasets.loading.shared import MIN_BYTES, attached, can_share, detached, shared_zeros
from returnn_tf.util.host_tensors import SharedMemory, host_tensor
from returnn_tf.util.lazy_tf import tf
from tests.waiting import until

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.skipif(not can_share(os.getpid()), reason="needs Linux"),
]

FRAMES = MIN_BYTES // 4 // 8  # of 8 numbers: two such sequences are shared, labels are not


def dataset() -> Any:
    rng = np.random.RandomState(1)
    lengths = [FRAMES, 3, 5, FRAMES // 2, 2, 2]
    seqs = [{"data": rng.normal(size=(n, 8)).astype("float32"), "classes": np.arange(n // 2)} for n in lengths]
    return Dataset.from_config({"class": "StaticDataset", "data": seqs, "output_dim": {"data": (8, 2), "classes": (9**6, 1)}})  # fmt: skip  # noqa: E501


def files_of(pid: int) -> int:
    """Return how many files in memory a process has open; Python keeps one for each mapping."""
    names = []
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append(os.readlink("/proc/%d/fd/%s" % (pid, fd)))
    return sum("memfd:batch" in name for name in names)


def assert_closed(pid: int) -> None:
    """Check that the loading process closes its files when it hears that the last batch was taken."""
    until(lambda: not files_of(pid), "a file is open")


def test_same_values(monkeypatch: Any) -> None:
    """Only the large arrays are shared; both processes drop them with the batch."""
    options: dict[str, Any] = {"batch_size": 10**6, "max_seqs": 2}
    expected = list(dataset().batches(epoch=1, **options))
    with BatchLoader(dataset(), prefetch=1) as loader:
        for epoch in (1, 2):
            got = list(loader.batches(epoch=epoch, **options))
            for batch, other in zip(got, expected):
                assert set(batch.feed) == set(other.feed) and batch.seq_tags == other.seq_tags
                for key, array in other.feed.items():
                    np.testing.assert_array_equal(batch.feed[key], array)
                    assert batch.feed[key].dtype == array.dtype and batch.feed[key].flags.writeable
            shared = [
                [key for key, array in batch.feed.items() if isinstance(array.base, SharedMemory)] for batch in got
            ]
            assert shared == [["data"], ["data"], []]
        assert_closed(loader.pid)
        del got, batch
        assert not files_of(os.getpid())
        monkeypatch.setattr(loading, "can_share", lambda pid: False)
        batch = next(loader.batches(epoch=1, **options))
        assert not isinstance(batch.feed["data"].base, SharedMemory)


def test_leaving_an_epoch_early_keeps_nothing_open() -> None:
    with BatchLoader(dataset(), prefetch=1) as loader:
        for _ in range(4):
            batches = loader.batches(epoch=1, batch_size=10**6, max_seqs=1)
            next(batches)
        assert len(list(loader.batches(epoch=1, batch_size=10**6, max_seqs=1))) == 6
        assert_closed(loader.pid)


@pytest.mark.slow
def test_tensors_without_a_copy() -> None:
    """They live on after the batch; another type, and a part of the array, are copied."""
    array = shared_zeros((FRAMES, 8), "float32")
    array[0] = 5
    alias, other, part = (
        host_tensor(array, tf.float32),
        host_tensor(array, tf.float64),
        host_tensor(array[1:], tf.float32),
    )
    array[:2] = 7
    assert alias[0, 0] == 7 and other[0, 0] == 5 and part.shape[0] == FRAMES - 1
    del array
    gc.collect()
    assert alias[0, 0] == 7 and not tf.reduce_any(part[1:] != 0)


def test_files_are_closed_with_what_needs_them() -> None:
    array = shared_zeros((FRAMES, 8), "float32")
    assert files_of(os.getpid()) == 2
    feed, files = detached({"x": array, "part": array[1:]})
    assert len(files) == 1 and isinstance(feed["part"], np.ndarray)
    array[:] = 3
    np.testing.assert_array_equal(attached(feed, os.getpid())["x"], array)
    os.close(files[0])
    del array, feed
    shared_zeros((FRAMES, 8), "float32")  # never sent
    assert not files_of(os.getpid())
