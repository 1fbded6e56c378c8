"""Datasets that are streams: number and tags of the sequences show only while reading."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.share import Share
from returnn_tf.datasets.core.stream import StreamDataset


class Counting(StreamDataset):
    """Sequence i has i % 3 + 1 frames; records what is read and whether the stream was closed."""

    num = 7
    events: list = []
    fails_at = None

    def stream(self, epoch, *, seq_list=None):
        self.events.append("open %d" % epoch)
        try:
            for index in range(self.num):
                if index == self.fails_at:
                    raise RuntimeError("no more")
                self.events.append(index)
                frames = np.arange(index % 3 + 1, dtype="float32")[:, None] + 10 * index + 100 * epoch
                yield Example(
                    index, "s%d" % index, {"data": frames, "classes": np.full(frames.shape[0], index, "int32")}
                )
        finally:
            self.events.append("close")


@pytest.fixture(name="dataset_of")
def _dataset_of():
    def make(num=7, fails_at=None, **options):
        dataset = Counting(**options)
        dataset.num, dataset.fails_at, dataset.events = num, fails_at, []
        return dataset

    return make


def tags(dataset, **options):
    return [seq.tag for seq in dataset.sequences(1, **options)]


def test_sequences_are_read_one_by_one(dataset_of):
    """No sequence is read before it is asked for, and none is kept."""
    dataset = dataset_of()
    sequences = dataset.sequences(2)
    dataset.data_keys  # noqa: B018  opens the stream of epoch 1 for a moment
    assert dataset.events == ["open 1", 0, "close"]
    first = next(sequences)
    assert (first.tag, first.index, first.position, first.data["data"][0, 0]) == ("s0", 0, 0, 200)
    next(sequences)
    assert dataset.events[3:] == ["open 2", 0, 1]
    sequences.close()
    assert dataset.events[-1] == "close"


def test_batches_read_ahead_by_one_sequence(dataset_of):
    """A batch is planned when the first sequence that does not fit is read."""
    dataset = dataset_of()
    batches = dataset.batches(1, max_seqs=2, batch_size=100, declared=None)
    dataset.events.clear()
    batch = next(batches)
    assert batch.seq_tags == ["s0", "s1"] and dataset.events == ["open 1", 0, 1, 2]
    assert [b.seq_tags for b in batches] == [["s2", "s3"], ["s4", "s5"], ["s6"]]
    assert dataset.events[-1] == "close"


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_resume_replays_the_stream(dataset_of, start):
    """Batches from the n-th on are the same as without interruption, also with chunks and random drops."""
    options = {"max_seqs": 2, "batch_size": 100, "chunking": "2:1", "seq_drop": 0.3}
    whole = list(dataset_of(num=20).batches(3, **options))
    rest = list(dataset_of(num=20).batches(3, start_batch=start, **options))
    assert len(whole) > 3 and len(rest) == len(whole) - start
    for batch, other in zip(whole[start:], rest):
        assert (batch.slices, batch.seq_tags, batch.number) == (other.slices, other.seq_tags, other.number)
        np.testing.assert_array_equal(batch.feed["data"], other.feed["data"])


def test_progress(dataset_of):
    """Without an estimate the progress is unknown in the first epoch; afterwards its number of sequences is used."""
    dataset = dataset_of(num=4)
    assert [batch.complete for batch in dataset.batches(1, max_seqs=1, batch_size=9)] == [None] * 4
    assert [batch.complete for batch in dataset.batches(2, max_seqs=1, batch_size=9)] == [0.25, 0.5, 0.75, 1]
    dataset = dataset_of(num=4, estimated_num_seqs=2)
    assert [batch.complete for batch in dataset.batches(1, max_seqs=1, batch_size=9)] == [0.5, 1, 1, 1]


@pytest.mark.parametrize("num", [1, 2, 5, 7])
@pytest.mark.parametrize("shards", [2, 3])
def test_every_sequence_is_in_one_shard(dataset_of, num, shards):
    """The shards are disjoint and complete, by options of the dataset and by the share that the engine asks for."""
    parts = [tags(dataset_of(num=num, _num_shards=shards, _shard_index=i)) for i in range(shards)]
    assert sorted(tag for part in parts for tag in part) == ["s%d" % i for i in range(num)]
    shares = [
        [
            t
            for b in dataset_of(num=num).batches(1, max_seqs=1, batch_size=9, share=Share(i, shards))
            for t in b.seq_tags
        ]
        for i in range(shards)
    ]
    assert shares == parts


def test_share_of_a_stream_equals_that_of_an_order():
    """Also after changes of the number of processes in mid-epoch."""
    rng = np.random.RandomState(1)
    for _ in range(200):
        size = rng.randint(1, 5)
        done = tuple(tuple(rng.randint(0, 4, size=rng.randint(1, 4)).tolist()) for _ in range(rng.randint(0, 3)))
        share = Share(rng.randint(0, size), size, done)
        order = np.arange(rng.randint(0, 25))
        assert list(share.of_stream(order)) == share.of_order(order).tolist()


def test_filters(dataset_of, tmp_path):
    """unique_seq_tags and seq_list_filter_file act while reading."""
    path = tmp_path / "tags.txt"
    path.write_text("s5\ns1\nother\n")
    assert tags(dataset_of(seq_list_filter_file=str(path))) == ["s1", "s5"]
    assert tags(dataset_of(unique_seq_tags=True)) == ["s%d" % i for i in range(7)]


def test_window(dataset_of):
    """The option window applies to the data of streams."""
    dataset = dataset_of(window=3)
    assert dataset.data_specs["data"].dim == 3 and dataset.num_outputs["data"] == (1, 2)
    third = list(dataset.sequences(1))[2].data["data"]
    np.testing.assert_array_equal(third, [[0, 120, 121], [120, 121, 122], [121, 122, 0]])


def test_errors_close_the_stream_and_name_the_place(dataset_of):
    """An exception in the user's generator ends the epoch with one error."""
    dataset = dataset_of(fails_at=2, name="train")
    with pytest.raises(DataError, match="dataset 'train', after sequence 's1' of epoch 1: RuntimeError: no more"):
        list(dataset.batches(1, max_seqs=1, batch_size=9))
    assert dataset.events[-1] == "close"


def test_batches_left_early_close_the_stream(dataset_of):
    """As a loading process does when it is told to stop."""
    dataset = dataset_of()
    batches = dataset.batches(1, max_seqs=1, batch_size=9)
    next(batches)
    batches.close()
    assert dataset.events[-1] == "close"


def test_memory_is_bounded(dataset_of):
    """Sequences that are not used are not kept either."""
    dataset = dataset_of(num=300)
    reader = dataset.open_epoch(1, ["data", "classes"])
    dataset.open_epoch = lambda *args: reader
    kept = []
    original = reader.has
    reader.has = lambda position: kept.append(len(reader._kept)) or original(position)
    list(dataset.batches(1, max_seqs=3, batch_size=9, min_seq_length=3))
    assert max(kept) <= 16
    assert len(reader._kept) <= 16


@pytest.mark.parametrize(
    "options, text",
    [
        ({"seq_ordering": "random"}, "'default' only, not seq_ordering 'random'"),
        ({"partition_epoch": 2}, "can't have partition_epoch=2"),
        ({"repeat_epoch": 2}, "can't have repeat_epoch=2"),
        ({"shuffle_frames_of_nseqs": 2}, "needs a corpus with random access"),
    ],
)
def test_refused_options(options, text):
    """What needs random access is refused when the dataset is made."""
    with pytest.raises(ConfigError, match=text):
        Counting(**options)


def test_refused_orders(dataset_of):
    """Sequences of a stream can't be chosen."""
    with pytest.raises(ConfigError, match="can't be chosen by seq_order"):
        tags(dataset_of(), seq_order=[1])
    with pytest.raises(ConfigError, match="can't be chosen by seq_list"):
        tags(dataset_of(), seq_list=["s1"])


def test_bad_items(dataset_of):
    """What is no sequence, and sequences without a key, are errors that name the place."""
    dataset = dataset_of()
    dataset.stream = lambda epoch: iter([Example(0, "a", {"data": np.zeros((1, 1))}), {"data": 1}])
    with pytest.raises(DataError, match="after sequence 'a' of epoch 1: {'data': 1} is no sequence"):
        list(dataset.sequences(1))
    dataset.stream = lambda epoch: iter([Example(i, "a%d" % i, {key: np.zeros(1)}) for i, key in enumerate("xy")])
    dataset._specs = None
    with pytest.raises(DataError, match=r"sequence 'a1' \(position 1 of epoch 1\): it has no key 'x', only y"):
        list(dataset.sequences(1))
    with pytest.raises(DataError, match="is empty: its stream ends without any sequence"):
        dataset_of(num=0).data_keys  # noqa: B018
