"""MapDatasetWrapper, AnythingDataset and DummyGenericDataset: recorded cases, and mistakes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import Dataset, dataset_from_config
from returnn_tf.datasets.combining.map_dataset import FromListDataset, MapDatasetBase
from tests.datasets.combining_cases import cases, compare

CASES = cases("MapDatasetWrapper", "AnythingDataset", "DummyGenericDataset")
TYPES = {
    "data": {"dim": 2, "shape": (None, 2)},
    "classes": {"dim": 9, "sparse": True, "shape": (None,), "dtype": "int32"},
}


class _NoLengths(MapDatasetBase):
    def __init__(self, num_seqs=6, length=lambda i: 2 + (3 * i) % 5, prefix="m-"):
        super().__init__(data_types=TYPES)
        self.num_seqs, self.length, self.prefix = num_seqs, length, prefix

    def __len__(self):
        return self.num_seqs

    def __getitem__(self, i):
        return {"data": np.full((self.length(i), 2), i, "float32"), "classes": np.arange(i + 1, dtype="int32")}

    def get_seq_tag(self, i):
        return "%s%d" % (self.prefix, i)


class _Lengths(_NoLengths):
    def get_seq_len(self, i):
        return self.length(i)


class _Order(_NoLengths):
    def get_seq_order(self, epoch=None):
        return [(epoch + j) % 6 for j in range(3)]


def _list():
    seqs = [{"x": np.arange(n + 2, dtype="float32")[:, None], "y": np.array([n], "int32")} for n in (3, 1, 2)]
    types = {"x": {"dim": 1, "shape": (None, 1)}, "y": {"dim": 5, "sparse": True, "shape": (None,), "dtype": "int32"}}
    return FromListDataset(seqs, sort_data_key="x", data_types=types)


def _four():
    return _Lengths(4, lambda i: i + 2, "seq-")


# the objects which the recordings describe in words
OBJECTS = {
    "map_default": _four,
    "map_sorted_reverse": _four,
    "map_partition2": _four,
    "map_own_order": _Order,
    "map_no_lens_random": _NoLengths,
    "map_no_lens_sorted": _NoLengths,
    "map_function_laplace": lambda: _Lengths,
    "from_list_sorted": _list,
}


def _dataset(name):
    options = dict(CASES[name][1]["options"])
    if name in OBJECTS:
        options["map_dataset"] = OBJECTS[name]()
    return Dataset.from_config(options)


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" not in case])
def test_recorded_cases(name):
    folder, case = CASES[name]
    if name == "anything":  # the shapes are recorded with the time axis, and the lengths for all keys at once
        case["dataset"]["per_key"] = {}
        for seq in case["epochs"]["1"]:
            seq["seq_len"] = dict.fromkeys(seq["data"], 1)
        dataset = _dataset(name)
        assert [seq.tag for seq in itertools.islice(dataset.sequences(1), 2)] == ["seq-0", "seq-1"]
        case["epochs"] = {}
    compare(_dataset(name), folder, case)


def test_order_by_length_needs_lengths():
    with pytest.raises(ConfigError, match="seq_ordering 'sorted' needs the lengths"):
        list(_dataset("map_no_lens_sorted").sequences(1))


@pytest.mark.parametrize("order", ["laplace:.2", "sort_bin_shuffle:.2", "sorted_reverse"])
def test_other_orders_by_length_need_them_too(order):
    with pytest.raises(ConfigError, match="needs the lengths"):
        list(
            Dataset.from_config(
                {"class": "MapDatasetWrapper", "map_dataset": _NoLengths(), "seq_ordering": order}
            ).sequences(1)
        )


def test_own_order_is_shared_by_processes_and_ignores_partitions():
    def tags(**options):
        dataset = Dataset.from_config({"class": "MapDatasetWrapper", "map_dataset": _Order(), **options})
        return [seq.tag for seq in dataset.sequences(2)]

    assert tags(partition_epoch=2) == tags() == ["m-2", "m-3", "m-4"]
    assert [tags(_num_shards=2, _shard_index=rank) for rank in (0, 1)] == [["m-2", "m-3"], ["m-4"]]


CONFIG = """#!returnn
import numpy
from returnn.datasets.map import MapDatasetBase, FromListDataset

class Mine(MapDatasetBase):
    def __init__(self, factor):
        super().__init__(data_types={"data": {"dim": 1, "shape": (None, 1)}})
        self.factor = factor
    def __len__(self):
        return 3
    def __getitem__(self, seq_idx):
        if seq_idx == 2:
            raise ValueError("no sequence %d today" % seq_idx)
        return {"data": numpy.full((seq_idx + 1, 1), self.factor, "float32")}
    def get_seq_len(self, seq_idx):
        return seq_idx + 1

def get():
    return Mine(2.0)

train = {"class": "MapDatasetWrapper", "map_dataset": get, "seq_ordering": "reverse"}
dev = {"class": "MapDatasetWrapper", "map_dataset": Mine(3.0), "partition_epoch": 3}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("map") / "map.config"
    path.write_text(CONFIG)
    return Config.from_file(str(path))


def test_classes_of_configs(config):
    dev = dataset_from_config(config, "dev")
    assert [seq.data["data"].tolist() for seq in dev.sequences(2)] == [[[3.0], [3.0]]]
    assert dev.num_outputs == {"data": (1, 2)}


def test_errors_in_code_of_configs_have_a_line(config):
    train = dataset_from_config(config, "train")
    with pytest.raises(DataError, match=r"'train', sequence 'seq-2' .*map.config:13: ValueError: no sequence 2 today"):
        list(train.sequences(1))


class _Bad(_NoLengths):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def __getitem__(self, i):
        return self.value


@pytest.mark.parametrize(
    "value, text",
    [
        (3, "is 3, but must be a dict of arrays"),
        ({"data": np.zeros((3, 2))}, "has no key 'classes', only data"),
        ({"data": np.zeros((3, 4)), "classes": np.zeros(3, int)}, "key 'data' has the shape .3, 4., but data_types"),
        ({"data": np.zeros((3, 2)), "classes": np.zeros((3, 1))}, "key 'classes' has the shape .3, 1., but data_types"),
    ],
)
def test_bad_data(value, text):
    dataset = Dataset.from_config({"class": "MapDatasetWrapper", "map_dataset": _Bad(value), "name": "a"})
    with pytest.raises(DataError, match="dataset 'a', sequence 'm-0' .*" + text):
        list(dataset.sequences(1))


@pytest.mark.parametrize(
    "source, text",
    [
        (3, "is 3, but must have the methods"),
        (lambda: 3, "lacks __len__ or __getitem__"),
        ([{"data": np.zeros(3)}], "data_types is None, but must be"),
        (FromListDataset([], data_types={"data": {"dim": "many"}}), "data_types.*'data'"),
    ],
)
def test_bad_objects(source, text):
    with pytest.raises(ConfigError, match="dataset 'a' .MapDatasetWrapper.: .*" + text):
        Dataset.from_config({"class": "MapDatasetWrapper", "map_dataset": source, "name": "a"})


def test_anything_takes_any_list():
    dataset = Dataset.from_config(
        {"class": "AnythingDataset", "data_keys": {"a": {"dim": 2}, "data": {"shape": (None, 3, None), "dim": 3}}}
    )
    (one, other) = dataset.sequences(1, seq_list=["x", "y"])
    assert (one.tag, other.tag) == ("x", "y")
    assert {key: value.shape for key, value in one.data.items()} == {"a": (1, 2), "data": (1, 3, 1)}
    assert dataset.target_list == ["data"]


def test_random_data_depends_on_epoch_and_index_only():
    options = {
        "class": "DummyGenericDataset",
        "data_template": {"data": {"dim": 2}, "text": {"dtype": "string", "shape": ()}},
        "num_seqs": 4,
    }
    first = {seq.index: seq.data for seq in Dataset.from_config(options).sequences(3)}
    for seq in Dataset.from_config({**options, "seq_ordering": "random"}).sequences(3):
        np.testing.assert_array_equal(seq.data["data"], first[seq.index]["data"])
        assert seq.data["text"] == first[seq.index]["text"]
    with pytest.raises(ConfigError, match="'seq_lens' has the key 'clases'.*Did you mean|Known"):
        Dataset.from_config({**options, "seq_lens": {"clases": 3}})
    with pytest.raises(ConfigError, match=r"\[4, 2\] must be a number of frames"):
        Dataset.from_config({**options, "seq_lens": {"data": [4, 2]}})
