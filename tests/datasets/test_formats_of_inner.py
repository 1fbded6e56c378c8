"""Datasets within other ones, where ``num_outputs`` leaves out "data" or has a dict for a key."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.test_librispeech import make as make_librispeech
from tests.datasets.test_oggzip import CHARS, make_zip


@pytest.fixture(scope="module")
def inner(tmp_path_factory):
    """Return datasets by name: text as a string among their keys, no audio, and inputs apart from ``num_outputs``."""
    folder = tmp_path_factory.mktemp("inner")
    (folder / "libri").mkdir()
    with h5py.File(folder / "stereo.hdf", "w") as file:
        for number in range(4):
            file["inputs/%d" % number] = np.full((4, 2), number, "float32")
            file["outputs/%d" % number] = np.zeros((4, 3), "float32")
    ogg = {"class": "OggZipDataset", "path": make_zip(folder / "a.zip"), "audio": {"features": "raw"}, "targets": CHARS}
    libri = {
        "class": "LibriSpeechCorpus",
        "path": make_librispeech(folder / "libri", use_zip=True),
        "prefix": "train",
        "audio": None,
        "use_zip": True,
    }
    return {
        "oggzip": ogg,
        "oggzip_text": {**ogg, "audio": None, "targets": None},
        "librispeech": libri,
        "stereo": {"class": "StereoHdfDataset", "hdfFile": str(folder / "stereo.hdf")},
    }


WRAPPERS = {
    "MetaDataset": lambda spec: {"datasets": {"x": spec}, "data_map": {"data": ("x", "data")}},
    "CombinedDataset": lambda spec: {
        "datasets": {"x": spec, "y": spec},
        "data_map": {("x", "data"): "data", ("y", "data"): "data"},
    },
    "ConcatDataset": lambda spec: {"datasets": [spec, spec]},
    "MultiEpochDataset": lambda spec: {"dataset": spec, "multi_epoch": 2},
    "PostprocessingDataset": lambda spec: {"dataset": spec, "map_seq": lambda data, **_: data},
    "VariableDataset": lambda spec: {"get_dataset": lambda **_: spec},
    "DistributeFilesDataset": lambda spec: {
        "files": [__file__] * 3,
        "get_sub_epoch_dataset": lambda files: {**spec, "seq_ordering": "default"},
        "partition_epoch": 3,
    },
    "MultiProcDataset": lambda spec: {"dataset": spec, "num_workers": 1, "buffer_size": 2},
}
TWICE = ("CombinedDataset", "ConcatDataset", "MultiEpochDataset")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oggzip", "oggzip_text", "librispeech", "stereo"])
def test_formats_and_sequences_of_all_wrappers(inner, name):
    spec = inner[name]
    alone = Dataset.from_config(spec)
    tags = [seq.tag for seq in alone.sequences(1)]
    for wrapper, options in WRAPPERS.items():
        if wrapper == "MultiProcDataset" and name != "stereo":
            continue  # to start processes is slow
        # text alone has no key "data"
        if "data" not in alone.data_specs and wrapper in ("MetaDataset", "CombinedDataset"):
            continue
        dataset = Dataset.from_config({"class": wrapper, **options(spec)})
        outputs = dataset.num_outputs
        if wrapper in ("MetaDataset", "CombinedDataset"):
            data = alone.data_specs["data"]
            assert outputs == {"data": (data.dim, data.ndim)}, wrapper
        else:
            assert outputs == alone.num_outputs, wrapper
            assert dataset.target_list == alone.target_list, wrapper
        assert dataset.num_inputs == alone.num_inputs, wrapper
        assert len(list(dataset.sequences(1))) == len(tags) * (2 if wrapper in TWICE else 1), wrapper


def test_data_may_be_a_text(inner):
    data_map = {"data": ("x", "raw")}
    dataset = Dataset.from_config({"class": "MetaDataset", "datasets": {"x": inner["oggzip"]}, "data_map": data_map})
    concat = Dataset.from_config({"class": "ConcatDataset", "datasets": [{**_meta(inner["oggzip"], data_map)}] * 2})
    for each in (dataset, concat):
        assert each.num_outputs == {"data": {"dtype": "string", "shape": ()}} and each.num_inputs == 0
        assert str(next(iter(each.sequences(1))).data["data"]) == "the cat sat"


def _meta(spec, data_map):
    return {"class": "MetaDataset", "datasets": {"x": spec}, "data_map": data_map}


def test_files_of_other_formats(inner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specs = {"0": inner["oggzip"], "1": {**inner["oggzip"], "audio": None}, "2": inner["stereo"]}
    for name in specs:
        (tmp_path / name).write_bytes(b"content")
    options = {"files": list(specs), "partition_epoch": 3}
    options["get_sub_epoch_dataset"] = lambda files: {**specs[files[0]], "seq_ordering": "default"}
    dataset = Dataset.from_config({"class": "DistributeFilesDataset", **options})
    assert len(list(dataset.sequences(1))) == 4
    for epoch, text in ((2, "'data' has (no data|dim 0)"), (3, "'data' has dim 2 and 2 axes, but dim 1 and 2 axes")):
        with pytest.raises(DataError, match=r"in these files, key %s.* in those of '0'" % text):
            list(dataset.sequences(epoch))
    with pytest.raises(ConfigError, match="'data' has dim 2 and 2 axes, but dim 1 .*need the same format"):
        Dataset.from_config({"class": "ConcatDataset", "datasets": [specs["0"], specs["2"]]})
