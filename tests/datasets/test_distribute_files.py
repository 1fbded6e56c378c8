"""DistributeFilesDataset: recorded bins and epochs, lists of files in all forms, shards, mistakes."""

from __future__ import annotations

import itertools
import json

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset, HDFDataset
from returnn_tf.datasets.combining.distribute_files import bins_by_size
from tests.datasets.combining_cases import ROOT, cases, compare, with_paths
from tests.waiting import until

BINS = json.loads((ROOT / "more" / "distribute.json").read_text())["bins"]
CASES = cases("DistributeFilesDataset")


def _hdf(files, **options):
    return {"class": "HDFDataset", "files": files, "seq_ordering": "default", **options}


def _dataset(name):
    folder, case = CASES[name]
    options = {**with_paths(case["options"], folder), "get_sub_epoch_dataset": _hdf}
    if name == "distribute_function":
        files = [str(ROOT / folder / file) for file in ("feat.hdf", "feat_less.hdf")]
        options["files"] = lambda: files
    if name == "distribute_files":
        options["get_sub_epoch_dataset"] = lambda files: _hdf(files, seq_ordering="sorted")
    return Dataset.from_config(options)


@pytest.mark.parametrize("case", BINS, ids=lambda case: "%s in %d" % (case["sizes"], case["num_bins"]))
def test_recorded_bins(case):
    assert bins_by_size(case["sizes"], case["num_bins"]) == case["bins"]


def test_no_bin_is_empty():
    rng = np.random.RandomState(1)
    for _ in range(300):
        sizes = rng.randint(0, 100, size=rng.randint(1, 15)).tolist()
        num_bins = rng.randint(1, len(sizes) + 1)
        bins = bins_by_size(sizes, num_bins)
        assert list(itertools.chain(*bins)) == list(range(len(sizes)))
        assert len(bins) == num_bins and all(bins)


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" not in case])
def test_recorded_cases(name):
    compare(_dataset(name), *CASES[name])


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" in case])
def test_recorded_errors(name):
    with pytest.raises(ConfigError, match="'DistributeFilesDataset' .DistributeFilesDataset.*fewer than|not one of"):
        _dataset(name)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return six files of 3 sequences each."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(6):
        with h5py.File(folder / ("%d.hdf" % number), "w") as file:
            file["inputs"] = np.full((6, 2), number, "float32")
            file["seqLengths"] = np.full((3, 2), 2, "int32")
            file["seqTags"] = np.array([b"%d/%d" % (number, i) for i in range(3)])
    return [str(folder / ("%d.hdf" % number)) for number in range(6)]


def _tags(files, epoch, make=_hdf, **options):
    options = {"class": "DistributeFilesDataset", "files": files, "get_sub_epoch_dataset": make, **options}
    return [seq.tag for seq in Dataset.from_config(options).sequences(epoch)]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["default", "random"])
def test_each_pass_reads_all_once(files, order):
    expected = sorted("%d/%d" % (number, i) for number in range(6) for i in range(3))
    for first in (1, 4):
        tags = [_tags(files, first + part, partition_epoch=3, seq_ordering=order) for part in range(3)]
        assert sorted(itertools.chain(*tags)) == expected
    if order == "random":
        assert _tags(files, 1, partition_epoch=3, seq_ordering=order) != _tags(
            files, 4, partition_epoch=3, seq_ordering=order
        )
        assert _tags(files, 1, seq_ordering=order) != _tags(files, 2, seq_ordering=order)


@pytest.mark.parametrize("preload", [0, 1, 2])
def test_all_epochs_from_one_dataset(files, preload):
    options = {"partition_epoch": 3, "seq_ordering": "random", "preload_next_n_sub_epochs": preload}
    dataset = Dataset.from_config(
        {"class": "DistributeFilesDataset", "files": files, "get_sub_epoch_dataset": _hdf, **options}
    )
    for epoch in (1, 2, 3, 4, 2):
        assert [seq.tag for seq in dataset.sequences(epoch)] == _tags(files, epoch, **options)


def test_shards_have_different_files(files):
    options = {"partition_epoch": 2, "seq_ordering": "random", "_num_shards": 3}
    tags = [_tags(files, epoch, _shard_index=rank, **options) for rank in range(3) for epoch in (1, 2)]
    assert sorted(itertools.chain(*tags)) == sorted("%d/%d" % (number, i) for number in range(6) for i in range(3))
    assert len(_tags(files, 1, _shard_index=0, sharding_fix=False, **options)) == 1  # divided once more


def test_inner_epoch_is_that_of_the_pass(files):
    def make(entries):
        return _hdf(entries, seq_ordering=lambda epoch, **_: epochs.append(epoch) or "default")

    epochs = []
    _tags(files, 6, make, partition_epoch=3)
    assert set(epochs) == {2}


@pytest.mark.parametrize("suffix", ["txt", "json", "py"])
def test_lists_in_files(files, suffix, tmp_path):
    path = tmp_path / ("list." + suffix)
    lines = ["# all of them", "", *(file + "  # one" for file in files)]
    path.write_text("\n".join(lines) if suffix == "txt" else json.dumps(files))
    assert _tags(str(path), 2, partition_epoch=2) == _tags(files, 2, partition_epoch=2)


def test_nested_entries_stay_together(files):
    nested = [{"a": files[0], "b": files[1:3]}, (files[3], files[4]), files[5]]
    entries = []

    def make(given):
        entries.append(given)
        return _hdf([files[0]])

    for epoch in (1, 2, 3):
        _tags(nested, epoch, make, partition_epoch=3, preload_next_n_sub_epochs=0)
    assert [nested[0]] in entries and [nested[1]] in entries and [nested[2]] in entries


def test_next_sub_epoch_is_made_in_advance(files):
    made = []

    def make(entries):
        made.append(tuple(entries))
        return _hdf(entries)

    options = {"class": "DistributeFilesDataset", "files": files, "get_sub_epoch_dataset": make, "partition_epoch": 6}
    sequences = Dataset.from_config(options).sequences(1)
    next(sequences)
    until(lambda: (files[1],) in made)
    assert (files[2],) not in made


@pytest.mark.parametrize(
    "options, text",
    [
        ({"files": []}, "'files' is empty"),
        ({"files": 3}, "'files' is 3, but must be a list"),
        ({"files": "all.hdf"}, "'files' is 'all.hdf', but must be a list"),
        ({"files": ["nowhere.hdf"]}, "file 'nowhere.hdf' cannot be found: No such file"),
        ({"partition_epoch": 7}, "has 6 entries, fewer than partition_epoch=7"),
        ({"partition_epoch": 3, "_num_shards": 3}, "fewer than partition_epoch=3 times _num_shards=3"),
        ({"get_sub_epoch_dataset": {"class": "HDFDataset"}}, "'get_sub_epoch_dataset' must be a function"),
        ({"get_sub_epoch_dataset": lambda files: None}, 'must return a dict with "class", not None'),
        ({"get_sub_epoch_dataset": lambda: None}, "get_sub_epoch_dataset: .*takes 0 positional arguments"),
        (
            {"get_sub_epoch_dataset": lambda files: {"class": "HDFDataset", "files": files}},
            "must name its seq_ordering",
        ),
        (
            {"get_sub_epoch_dataset": lambda files: _hdf(files, partition_epoch=2)},
            "partition_epoch must be an option of",
        ),
        ({"seq_list_filter_file": "a.txt"}, "set option 'seq_list_filter_file' in the dataset of a sub-epoch"),
        ({"seq_ordering": "sorted"}, "seq_ordering 'sorted' is not one of default and random"),
        ({"seq_ordering": lambda epoch: "laplace"}, "seq_ordering of epoch 1 is 'laplace', not one of"),
    ],
)
def test_mistakes(files, options, text):
    options = {"class": "DistributeFilesDataset", "files": files, "get_sub_epoch_dataset": _hdf, **options}
    with pytest.raises((ConfigError, DataError), match="DistributeFilesDataset.: .*" + text):
        list(Dataset.from_config(options).sequences(1))


def test_sequences_cannot_be_chosen(files):
    with pytest.raises(ConfigError, match="opens other files in each epoch, so its sequences can't be chosen"):
        dataset = {"class": "DistributeFilesDataset", "files": files, "get_sub_epoch_dataset": _hdf}
        list(Dataset.from_config(dataset).sequences(1, seq_list=["0/0"]))


def test_files_of_other_sub_epochs_are_closed(files):
    made = []

    class Noted(HDFDataset):
        def setup(self):
            super().setup()
            made.append(self)

    dataset = Dataset.from_config(
        {
            "class": "DistributeFilesDataset",
            "files": files,
            "get_sub_epoch_dataset": lambda entries: {**_hdf(entries), "class": Noted},
            "partition_epoch": 3,
            "preload_next_n_sub_epochs": 0,
        }
    )
    for epoch in (1, 2, 3):
        list(dataset.sequences(epoch))
        in_use = [inner.files for inner in made if any(file.is_open for file in inner.files)]
        assert len(in_use) <= 2  # that of the epoch, and that of the first file, which gives the format
    dataset.close()
    assert not any(file.is_open for inner in made for file in inner.files)
