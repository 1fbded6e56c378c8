"""Reading ahead in threads: the order, the errors and the data are those of reading one by one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.read_ahead import ReadAhead, ReadAheadOptions, default_threads
from tests.waiting import LONG


class Noise(Dataset):
    """Random sequences of random lengths; the one with the tag "seq-7" is broken on demand."""

    broken = False

    @dataclasses.dataclass
    class Options(ReadAheadOptions):
        """Those of all."""

    def setup(self) -> None:
        self.data_specs = {"data": DataSpec(dim=3, ndim=2, dtype="float32", shape=(3,))}
        self.readers: set[str] = set()

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences of the corpus."""
        return 20

    @property
    def read_threads(self) -> int:
        """As the option says."""
        return int(self.opts.read_threads)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, Any]:
        """Draw a sequence."""
        self.readers.add(threading.current_thread().name)
        if self.broken and index == 7:
            raise DataError("broken")
        rng = np.random.RandomState([self.epoch_seed(epoch), index])
        return {"data": rng.normal(size=(rng.randint(1, 9), 3)).astype("float32")}


@pytest.mark.parametrize(
    "options", [{}, {"seq_ordering": "random"}, {"chunking": "2:1"}, {"shuffle_frames_of_nseqs": 4}], ids=str
)
def test_same_batches(options: dict[str, Any]) -> None:
    """Threads change nothing, also if an epoch is resumed."""
    results = []
    for threads, start in ((1, 0), (4, 0), (3, 5)):
        dataset = Noise(read_threads=threads, **options)
        batches = list(dataset.batches(epoch=2, start_batch=start, max_seqs=2))
        assert len(dataset.readers) > 1 or threads == 1
        results.append([(batch.number, batch.seq_tags, batch.feed["data"].tobytes()) for batch in batches])
    assert results[0] == results[1]
    assert results[0][5:] == results[2]
    assert len(results[0]) >= 10


def test_error_at_its_position() -> None:
    """What comes before a broken sequence is delivered, although it was read later."""
    dataset = Noise(read_threads=4)
    dataset.broken = True
    tags = []
    with pytest.raises(DataError, match="'seq-7'.*broken"):
        for sequence in dataset.sequences(1):
            tags.append(sequence.tag)
    assert tags == ["seq-%d" % i for i in range(7)]


def reading() -> set[threading.Thread]:
    """Return the threads that read ahead; others may end at any time, such as those that earlier tests have started."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("reading")}


def test_reads_at_the_same_time_and_ends() -> None:
    """Four items need each other; the first position alone reads nothing ahead; no thread stays."""
    before = reading()
    meeting = threading.Barrier(4)
    asked: list[int] = []

    def read(position: int) -> int:
        asked.append(position)
        if 2 <= position < 6:
            meeting.wait(timeout=LONG)
        return position * position

    ahead = ReadAhead(read, lambda position: position < 50, 4)
    assert ahead.get(0) == 0 and asked == [0]
    assert [ahead.get(position) for position in range(1, 6)] == [1, 4, 9, 16, 25]
    assert ahead.get(40) == 1600  # somewhere else
    assert [ahead.get(position) for position in range(41, 50)] == [position**2 for position in range(41, 50)]
    assert max(asked) == 49 and len(set(asked)) == len(asked)
    ahead.close()
    assert reading() <= before


def test_an_epoch_that_is_left_ends_its_threads() -> None:
    """Closing the batches is enough."""
    before = reading()
    batches = Noise(read_threads=4).batches(max_seqs=1)
    assert [next(batches).seq_tags for _ in range(3)] == [["seq-0"], ["seq-1"], ["seq-2"]]
    assert reading() - before
    batches.close()  # type: ignore[attr-defined]
    assert reading() <= before


def test_default_threads() -> None:
    """At least one, and few."""
    assert 1 <= default_threads() <= 4
