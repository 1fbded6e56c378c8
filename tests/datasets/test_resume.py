"""Resuming an epoch at the next sequence: what was read before is not read again, and the batches stay the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.share import Share
from returnn_tf.logging.log import log
from tests.datasets.recorded import check_resumption
from tests.datasets.streams import Streamed
from tests.datasets.test_combined import static

NUM = 40
READ: list[int] = []  # corpus indices, in this process


class _Resumable(Streamed):
    """A stream that goes on at any sequence."""

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        for index in range(how.get("resume") or 0, self.opts.num):
            READ.append(index)
            yield Example(index, "%s%d" % (self.opts.prefix, index), self.make(index, epoch), resume=index + 1)


class _Replayed(Streamed):
    """A stream that is read again."""

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        for sequence in super().stream(epoch):
            READ.append(sequence.index)
            yield sequence


class _Map:
    """An object of a config with random access, whose lengths are known by reading only."""

    data_types = {"data": {"dim": 2}}

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> dict[str, Any]:
        READ.append(index)
        return {"data": np.full((index % 5 + 1, 2), index, "float32")}


def _noisy(data: Any, *, rng: np.random.RandomState, seq_idx: int, **_: Any) -> Any:
    value = data["data"].raw_tensor
    data["data"].raw_tensor = (value + rng.normal() + rng.randint(0, 9) + seq_idx).astype("float32")
    return data


MAP = {"class": "MapDatasetWrapper", "map_dataset": _Map(), "seq_ordering": "random"}


def _stream(prefix: str = "s", **options: Any) -> Dataset:
    return _Resumable(num=NUM, prefix=prefix, estimated_num_seqs=NUM, **options)


def _processed(inner: Any, **options: Any) -> dict[str, Any]:
    return {"class": "PostprocessingDataset", "dataset": inner, "map_seq": _noisy, **options}


def _combined(ordering: str, **options: Any) -> dict[str, Any]:
    names = {"a": _stream("a"), "b": _processed(MAP)}
    data_map = {(name, "data"): "data" for name in names}
    return {"class": "CombinedDataset", "datasets": names, "data_map": data_map, "seq_ordering": ordering, **options}


def _meta(inner: Any) -> dict[str, Any]:
    data_map = {"data": ("a", "data"), "noisy": ("b", "data")}
    return {"class": "MetaDataset", "datasets": {"a": MAP, "b": inner}, "data_map": data_map}


CASES: dict[str, Any] = {
    "map": lambda: MAP,
    "stream": _stream,
    "shard of a stream": lambda: _stream(_num_shards=2, _shard_index=1),
    "map_seq": lambda: _processed(MAP),
    "map_seq of a stream": lambda: _processed(_stream()),
    "concat of streams": lambda: {"class": "ConcatDataset", "datasets": [_stream("a"), _stream("b")]},
    "concat of a stream and a map": lambda: {"class": "ConcatDataset", "datasets": [_stream(), MAP]},
    "multi-epoch of a stream": lambda: {"class": "MultiEpochDataset", "dataset": _stream(), "multi_epoch": 2},
    "multi-epoch of map_seq": lambda: {"class": "MultiEpochDataset", "dataset": _processed(MAP), "multi_epoch": 2},
    "variable": lambda: {"class": "VariableDataset", "get_dataset": lambda **_: MAP},
    "meta with map_seq": lambda: _meta(_processed(MAP)),
    "combined in order": lambda: _combined("default"),
    "combined at random": lambda: _combined("random_dataset"),
    "combined with noise": lambda: _combined("interleave", interleave_gumbel_scale=1.0),
}
PLANS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"chunking": "2:1"},
    "chunks of random size": {"chunking": "3:2", "chunking_variance": 0.5, "seq_drop": 0.2},
    "dropped": {"seq_drop": 0.4},
    "too long": {"max_seq_length": 3, "min_seq_length": 2, "chunking": "3", "chunking_variance": 0.5},
    "total": {"max_total_num_seqs": 31, "seq_drop": 0.2},
    "context": {"context_window": 3, "chunking": "2"},
}
LIMITS = {"batch_size": 1000, "max_seqs": 3}


def _check_reads(dataset: Dataset, most: int, **options: Any) -> None:
    """Check that resuming near the end reads few sequences, though more than 30 are before."""
    every = list(dataset.batches(1, **LIMITS, **options))
    start = len(every) - 1
    last = every[start - 1]
    seqs = 1 + max(position for parts in last.slices.values() for position, _, _ in parts)
    READ.clear()
    resume = json.loads(json.dumps(last.resume))
    next(iter(dataset.batches(1, start_batch=start, start_seq=seqs, resume=resume, **LIMITS, **options)))
    assert 0 < len(READ) <= most


@pytest.mark.parametrize("case", CASES)
def test_goes_on_at_the_next_sequence(case):
    dataset = Dataset.from_config(CASES[case]())
    list(dataset.batches(1, **LIMITS))  # since then the number of sequences of a stream is known
    check_resumption(dataset, 1, batch_size=1000, max_seqs=11)
    _check_reads(dataset, 2 * (3 + 2 + 2) + 7)  # of two datasets: a batch, those ahead, of a chooser, since a state


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("case", ["map", "map_seq", "stream"])
def test_plans_go_on(case, plan):
    """Chunks, random numbers and counts go on as if nothing had happened."""
    dataset = Dataset.from_config(CASES[case]())
    list(dataset.batches(1, **LIMITS))
    check_resumption(dataset, 2, batch_size=50, max_seqs=11, **PLANS[plan])
    _check_reads(dataset, 12 + 7 * (case == "map_seq"), **PLANS[plan])


@pytest.mark.parametrize("case", ["stream", "map_seq", "concat of streams", "multi-epoch of map_seq", "variable"])
@pytest.mark.parametrize("share", [Share(1, 2), Share(0, 3, ((2, 1), (3, 0, 4)))])
def test_shares_go_on(case, share):
    """Also those that are left to other numbers of processes."""
    dataset = Dataset.from_config(CASES[case]())
    check_resumption(dataset, 1, batch_size=1000, max_seqs=6, share=share)
    _check_reads(dataset, 12 + 7 * ("map_seq" in case), share=share)


@pytest.mark.parametrize("inner", [static([3, 1, 4, 1, 5, 2, 6]), _Resumable(num=7, estimated_num_seqs=7)])
def test_processes_go_on(inner):
    """The generators of all processes, of map_seq and of dedicated shards."""
    check_resumption(Dataset.from_config(_processed(inner, num_workers=3)), 1, batch_size=50, max_seqs=2)
    dedicated = {"class": "MultiProcDataset", "dataset": _processed(inner), "num_workers": 3, "buffer_size": 2}
    check_resumption(Dataset.from_config({**dedicated, "sharding_method": "dedicated"}), 1, batch_size=50, max_seqs=2)


def test_lists_of_tags_go_on(tmp_path):
    """Glued sequences, and those of an inner dataset whose random numbers run through the epoch."""
    (tmp_path / "list").write_text("".join("seq-%d;seq-%d\n" % (i, (i * 7) % NUM) for i in range(NUM)))
    (tmp_path / "lengths").write_text(repr({"seq-%d" % i: 1 for i in range(NUM)}))
    spec = {"class": "ConcatSeqsDataset", "dataset": _processed(MAP), "seq_list_file": str(tmp_path / "list")}
    dataset = Dataset.from_config({**spec, "seq_len_file": str(tmp_path / "lengths")})
    check_resumption(dataset, 1, batch_size=1000, max_seqs=5)
    _check_reads(dataset, 19)


@pytest.mark.parametrize(
    "spec",
    [
        lambda: _Replayed(num=NUM),
        lambda: {**_processed(MAP, map_seq_stream=lambda sequences: sequences), "map_seq": None},
        lambda: _stream(unique_seq_tags=True),
    ],
)
def test_what_has_no_state_is_read_again(spec, monkeypatch):
    """The log tells the number of sequences."""
    lines: list[str] = []
    monkeypatch.setattr(log, "write", lambda level, text: lines.append(text))
    dataset = Dataset.from_config(spec())
    list(dataset.batches(1, **LIMITS))
    check_resumption(dataset, 1, batch_size=1000, max_seqs=9)
    lines.clear()
    READ.clear()
    next(iter(dataset.batches(1, start_batch=10, start_seq=30, **LIMITS)))
    assert [line for line in lines if "reading the 30 sequences before the next one again" in line] == lines
    assert len(lines) == 1 and len(READ) >= 33
