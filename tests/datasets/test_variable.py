"""VariableDataset: another dataset in every epoch."""

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.share import Share
from tests.datasets.combining_cases import ROOT, cases, compare
from tests.datasets.streams import Streamed
from tests.datasets.test_combined import static

CASES = cases("VariableDataset")


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    """Sequences and format are the recorded ones."""
    folder, case = CASES[name]
    second = "feat_b.hdf" if folder == "meta" else "feat_less.hdf"

    def get_dataset(self, epoch, **_):
        assert isinstance(self, Dataset)
        return {"class": "HDFDataset", "files": [str(ROOT / folder / ("feat.hdf" if epoch % 2 else second))]}

    same = case["options"].get("always_same_tags", False)
    dataset = Dataset.from_config({"class": "VariableDataset", "get_dataset": get_dataset, "always_same_tags": same})
    compare(dataset, folder, {**case, "dataset": {**case["dataset"], "all_tags": None}})
    if same:
        assert [dataset.tag(index) for index in range(5)] == case["dataset"]["all_tags"]


def variable(get_dataset, **options):
    return Dataset.from_config({"class": "VariableDataset", "get_dataset": get_dataset, "name": "train", **options})


def tags(dataset, epoch, **options):
    return [seq.tag for seq in dataset.sequences(epoch, **options)]


def test_equal_dicts_keep_the_dataset():
    """The function is called in every epoch; a dataset is made anew only if its dict differs and is not kept."""
    made = []

    class Made(Streamed):
        def setup(self):
            made.append(self.opts.prefix)

    dataset = variable(lambda epoch: {"class": Made, "prefix": "ab"[epoch % 2]})
    for epoch in (1, 1, 3, 2, 2, 1):
        list(dataset.sequences(epoch))
    assert made == ["b", "a", "b"]
    made.clear()
    dataset = variable(lambda epoch: {"class": Made, "prefix": "ab"[epoch % 2]}, dataset_lru_cache_size=2)
    for epoch in (1, 2, 1, 2):
        list(dataset.sequences(epoch))
    assert made == ["b", "a"]


def test_explicit_orders_shares_and_window():
    """They are those of the dataset of the epoch."""
    dataset = variable(lambda epoch: static([epoch, 2, 3, 1, 1]), window=3)
    assert tags(dataset, 1, seq_list=["seq-2", "seq-0"]) == ["seq-2", "seq-0"]
    assert tags(dataset, 1, seq_order=[4]) == ["seq-4"]
    shares = [[t for b in dataset.batches(2, batch_size=9, share=Share(i, 2)) for t in b.seq_tags] for i in range(2)]
    assert shares == [["seq-0", "seq-2", "seq-4"], ["seq-1", "seq-3"]]
    assert next(dataset.sequences(4)).data["data"].shape == (4, 6) and dataset.data_specs["data"].dim == 6


def test_streams_and_inherited_options():
    """The dataset of an epoch may be a stream; seed offset and shard are inherited."""
    dataset = variable(lambda epoch, **_: {"class": Streamed, "num": epoch}, _num_shards=2, _shard_index=1)
    assert [tags(dataset, epoch) for epoch in (1, 2, 5)] == [[], ["s1"], ["s1", "s3"]]
    dataset = variable(lambda epoch: {"class": Streamed, "num": 4, "estimated_num_seqs": 4})
    assert [batch.complete for batch in dataset.batches(1, batch_size=9, max_seqs=2)] == [0.5, 1.0]
    dataset = variable(lambda epoch, **_: static([1]), random_seed_offset=5)
    assert dataset.dataset_of(1).random_seed_offset == 5


@pytest.mark.parametrize(
    "get_dataset, text",
    [
        (lambda epoch: None, "'train' .VariableDataset.: get_dataset for epoch 1 returned None"),
        (lambda epoch: {"class": "Nope"}, "inner dataset 'train_epoch1': unknown dataset class 'Nope'"),
        ("x", "option 'get_dataset' must be"),
    ],
)
def test_bad_functions(get_dataset, text):
    """A mistake shows when the dataset is made."""
    with pytest.raises(ConfigError, match=text):
        variable(get_dataset)


def test_other_format_in_a_later_epoch():
    """The format may not change, since the network depends on it."""
    dataset = variable(lambda epoch: {"class": "DummyDataset", "input_dim": epoch, "output_dim": 2, "num_seqs": 1})
    with pytest.raises(
        ConfigError, match="for epoch 2: key 'data' has dim 2 and 2 axes, but dim 1 and 2 axes in epoch"
    ):
        list(dataset.sequences(2))


def test_other_keys_in_a_later_epoch():
    """They matter only if they are read."""

    def get_dataset(epoch):
        keys = {1: ["data", "more"], 2: ["data"], 3: ["data", "more", "new"]}[epoch]
        return {"class": "StaticDataset", "data": [{key: np.full((epoch, 2), 7.0) for key in keys}]}

    dataset = variable(get_dataset)
    assert dataset.data_keys == ["data", "more"]
    for epoch, keys in ((1, ["data", "more"]), (2, ["data"]), (3, ["data", "more"])):
        (batch,) = dataset.batches(epoch, used_data_keys=keys)
        assert batch.num_frames == dict.fromkeys(keys, epoch)
    with pytest.raises(ConfigError, match="for epoch 2: there is no data key 'more', which is read .* it has: data"):
        dataset.batches(2)


def test_own_order_is_refused():
    """The order is that of the inner dataset."""
    with pytest.raises(ConfigError, match="'seq_ordering' is 'random', but the order is that of the inner dataset"):
        variable(lambda epoch: static([1]), seq_ordering="random")
    with pytest.raises((ConfigError, DataError), match="known only while it is read"):
        variable(lambda epoch: static([1])).tag(0)


def test_datasets_of_other_epochs_are_closed(tmp_path):
    """At once, also those inside of them, so that their files do not stay open until the garbage is collected."""
    for number in range(2):
        with h5py.File(tmp_path / ("%d.hdf" % number), "w") as file:
            file["inputs"], file["seqLengths"] = np.zeros((4, 2), "float32"), np.full((2, 2), 2, "int32")
            file["seqTags"] = np.array([b"a", b"b"])

    def make(epoch):
        hdf = {"class": "HDFDataset", "files": [str(tmp_path / ("%d.hdf" % (epoch % 2)))]}
        return {"class": "MetaDataset", "datasets": {"x": hdf}, "data_map": {"data": ("x", "data")}}

    dataset = variable(make)
    list(dataset.sequences(1))
    file = dataset.dataset_of(1).inner["x"].files[0]
    assert file.is_open
    sequences = dataset.sequences(2)
    assert next(sequences).tag == "a" and not file.is_open
    assert tags(dataset, 1) == ["a", "b"]
    dataset.close()
    sequences.close()
