"""Datasets of old configs: pairs of frames in HDF files, frames of wav files, clusters; and those which are absent."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.hdf.stereo import create_normalization_file
from tests.datasets.combining_cases import ROOT, cases, compare, with_paths

CASES = cases("StereoHdfDataset", "DatasetWithTimeContext", "RawWavDataset", "ClusteringDataset")
ABSENT = cases("ChunkShuffleDataset", "NumpyDumpDataset", "NextGenHDFDataset", "NoSuchDataset")
MORE = ROOT / "more"


@pytest.fixture(autouse=True)
def _in_their_folder(monkeypatch):
    monkeypatch.chdir(MORE)  # the bundle and the list have relative names


def _dataset(name, **changes):
    folder, case = CASES[name]
    return Dataset.from_config({**with_paths(case["options"], folder), **changes})


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" not in case])
def test_recorded_cases(name):
    compare(_dataset(name), *CASES[name])


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" in case])
def test_recorded_errors(name):
    with pytest.raises(DataError, match="st_in.hdf' has no group 'outputs'"):
        _dataset(name)


@pytest.mark.parametrize("name", ABSENT)
def test_classes_that_there_are_not(name):
    with pytest.raises(ConfigError, match="is not available: .*use |unknown dataset class 'NoSuchDataset'"):
        Dataset.from_config(ABSENT[name][1]["options"])


def test_recorded_normalization_file(tmp_path):
    create_normalization_file("st.bundle", str(tmp_path / "n.hdf"))
    recorded = json.loads((MORE / "more.json").read_text())["normalization_file"]
    with h5py.File(tmp_path / "n.hdf") as file:
        for key, value in recorded.items():
            np.testing.assert_allclose(file[key][()], value, rtol=1e-6)


def test_orders_and_parts():
    dataset = _dataset("stereo_bundle_norm", seq_ordering="sorted_reverse")
    assert [seq.lengths["data"] for seq in dataset.sequences(1)] == [5, 4, 3, 3, 2]
    dataset = _dataset("stereo_bundle_norm", seq_ordering="sorted", partition_epoch=2)
    assert [[seq.lengths["data"] for seq in dataset.sequences(epoch)] for epoch in (1, 2)] == [[3, 4], [2, 5]]
    assert [seq.tag for seq in dataset.sequences(1, seq_list=["seq-4"])] == ["seq-4"]


@pytest.mark.parametrize(
    "name, changes, text",
    [
        ("stereo", {"hdfFile": "no.hdf"}, "HDF file 'no.hdf' does not exist"),
        ("stereo", {"normalizationFile": "feat.hdf"}, "normalization file 'feat.hdf' has no mean"),
        ("stereo_classes", {"num_outputs": None}, "'num_outputs' must give the number of labels"),
        (
            "stereo_classes",
            {"normalizationFile": "norm.hdf"},
            "'norm.hdf' has 3 dims for classes, but the frames have 1",
        ),
        ("stereo", {"partition_epoch": 9}, "partition_epoch=9, but there are 2 sequences"),
        ("raw_wav", {"listFile": "two.txt"}, "u/3' cannot be read"),
        ("clustering", {"n_clusters": 2}, "key 'u/2' has the value '2', not a number below n_clusters=2"),
        ("clustering", {"cluster_map_file": "two.txt"}, "'two.txt' is no XML"),
        ("clustering", {"seq_ordering": "random"}, "the order is that of the inner datasets"),
    ],
)
def test_mistakes(name, changes, text):
    with pytest.raises((ConfigError, DataError), match=text):
        list(_dataset(name, **changes).sequences(1))


def test_wav_file_that_was_cut(tmp_path):
    (tmp_path / "cut.wav").write_bytes((ROOT / "more" / "w0.wav").read_bytes()[:-8])
    (tmp_path / "list").write_text(str(tmp_path / "cut.wav") + "\n")
    with pytest.raises(DataError, match="cut.wav' is incomplete: 8 bytes of it are missing"):
        list(_dataset("raw_wav", listFile=str(tmp_path / "list")).sequences(1))
