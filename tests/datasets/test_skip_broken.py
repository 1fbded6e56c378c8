"""The option ``skip_broken_seqs``: sequences that cannot be read are left out, counted and listed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.options import option
from returnn_tf.datasets import BatchLoader, Dataset, DataSpec
from tests.datasets.recorded import ROOT


class Fragile(Dataset):
    """Ten sequences with lengths 1 to 10, of which some cannot be read; the lengths may be known without reading."""

    @dataclass
    class Options(Dataset.Options):
        broken: list = option([], help="indices")
        knows_lengths: bool = option(False, help="without reading")

    num_seqs = 10

    def setup(self):
        self.data_specs = {"data": DataSpec(dim=2, ndim=2, dtype="float32", shape=(2,))}

    def lengths(self, index):
        return {"data": index + 1} if self.opts.knows_lengths else None

    def seq_lengths(self):
        return np.arange(10)

    def read(self, index, epoch, keys):
        if index in self.opts.broken:
            raise DataError("audio file 'a/%d.ogg' cannot be decoded" % index)
        return {"data": np.full((index + 1, 2), index, "float32")}


def _make(**options):
    return Fragile(name="train", skip_broken_seqs=True, **options)


@pytest.mark.parametrize("knows_lengths", [False, True])
@pytest.mark.parametrize("chunking", [None, "3:2"])
def test_batches_are_those_without_the_broken_ones(knows_lengths, chunking, caplog):
    options = {"seq_ordering": "random", "chunking": chunking, "knows_lengths": knows_lengths}
    dataset = _make(broken=[0, 3, 9], **options)
    whole = Fragile(**options)
    kept = [index for index in whole.seq_order(4) if index not in (0, 3, 9)]
    got = list(dataset.batches(4, batch_size=12, max_seqs=3))
    expected = list(whole.batches(4, batch_size=12, max_seqs=3, seq_order=kept))
    assert [batch.seq_tags for batch in got] == [batch.seq_tags for batch in expected]
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(one.feed["data"], other.feed["data"])
    assert dataset.batch_stats.num_broken == 3
    assert "3 left out as they could not be read" in dataset.batch_stats.summary()
    (record,) = caplog.records
    text = record.getMessage()
    assert "'train'" in text and "epoch 4: 3 sequences could not be read and were left out:\n" in text
    assert all("sequence 'seq-%d'" % index in text and "'a/%d.ogg'" % index in text for index in (0, 3, 9))


def test_resumed_in_mid_epoch():
    dataset = _make(broken=[1, 2, 6], knows_lengths=True)
    batches = [batch.seq_tags for batch in dataset.batches(1, batch_size=12)]
    for start in range(len(batches)):
        assert [batch.seq_tags for batch in dataset.batches(1, batch_size=12, start_batch=start)] == batches[start:]


def test_sequences(caplog):
    dataset = _make(broken=[4, 5])
    assert [seq.index for seq in dataset.sequences(1)] == [0, 1, 2, 3, 6, 7, 8, 9]
    assert [seq.tag for seq in dataset.sequences(1, seq_list=["seq-5", "seq-8"])] == ["seq-8"]
    assert len(caplog.records) == 2


def test_chunking_function():
    def chunks(dataset, seq_idx_start, **_):
        return [(position, 0, dataset.lengths(position)["data"]) for position in (0, 2, 3)]

    dataset = _make(broken=[2], knows_lengths=True, chunking=chunks)
    assert [tag for batch in dataset.batches(1, batch_size=50) for tag in batch.seq_tags] == ["seq-0", "seq-3"]


def test_without_the_option_it_is_an_error():
    with pytest.raises(DataError, match="'train', sequence 'seq-3' .position 3 of epoch 1.: audio file 'a/3.ogg'"):
        list(Fragile(name="train", broken=[3]).batches(1, batch_size=50))


def test_nothing_is_left():
    dataset = _make(broken=list(range(10)))
    for run in (dataset.batches, dataset.sequences):
        with pytest.raises(
            DataError, match="none of the 10 sequences of epoch 1 can be read; the first error is: .*'seq-0'"
        ):
            list(run(1))


def test_a_long_list_is_cut(caplog, monkeypatch):
    monkeypatch.setattr("returnn_tf.datasets.core.epoch._MOST_LISTED", 2)
    list(_make(broken=[1, 3, 5, 7]).sequences(1))
    assert "'seq-3'" in caplog.text and "'seq-5'" not in caplog.text and "\n  and 2 others" in caplog.text


def test_an_outer_dataset_leaves_out_what_is_made_of_them(tmp_path):
    parts = [_make(broken=[0, 1]), Fragile(name="second")]
    dataset = Dataset.from_config({"class": "ConcatDataset", "datasets": parts})
    assert len(list(dataset.sequences(1))) == 18


def test_loader_counts_them():
    with BatchLoader(_make(broken=[2])) as loader:
        batches = list(loader.batches(1, batch_size=1000))
        assert sum(len(batch.seq_tags) for batch in batches) == 9
        assert loader.batch_stats.num_broken == 1


def test_not_together_with_shuffled_frames():
    with pytest.raises(ConfigError, match="skip_broken_seqs cannot go with shuffle_frames_of_nseqs"):
        _make(shuffle_frames_of_nseqs=2)


def test_several_processes(tmp_path):
    inner = {"class": "HDFDataset", "files": [str(ROOT / "hdf" / "simple_dense.hdf")], "skip_broken_seqs": True}
    with pytest.raises(ConfigError, match="skip_broken_seqs needs sharding_method 'dedicated'"):
        Dataset.from_config({"class": "MultiProcDataset", "dataset": inner, "num_workers": 2, "buffer_size": 3})
