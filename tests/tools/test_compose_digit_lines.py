"""The tool which composes lines of digits: layout of its files, disjoint sources, the same bytes for the same seed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "compose_digit_lines.py")
SMALL = ["--train", "40", "--dev", "10", "--heldout", "15"]
SETS = {"train": 40, "dev": 10, "heldout": 15}


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """Return a directory with the three files."""
    directory = tmp_path_factory.mktemp("lines")
    done = run_tool(str(directory), *SMALL)
    assert done.returncode == 0, done.stderr
    assert "train.hdf: 40 lines" in done.stdout
    return directory


@pytest.mark.parametrize("name", list(SETS))
def test_layout(composed, name):
    with h5py.File(composed / (name + ".hdf"), "r") as file:
        lengths = file["seqLengths"][()]
        assert lengths.dtype == "int32" and lengths.shape == (SETS[name], 2)
        assert file["inputs"].dtype == "float32" and file["inputs"].shape == (lengths[:, 0].sum(), 12)
        assert file["inputs"][()].min() >= 0 and 0.9 < file["inputs"][()].max() <= 1
        assert file["targets/data/classes"].shape == (lengths[:, 1].sum(),)
        assert set(file["targets/data/classes"][()]) == set(range(10))
        assert file["targets/size"].attrs["classes"].tolist() == [10, 1]
        assert len(set(file["seqTags"][()])) == SETS[name]
        assert lengths[:, 1].min() >= 3 and lengths[:, 1].max() <= 8
        assert (lengths[:, 0] >= 2 * lengths[:, 1]).all()  # CTC finds a path, repeated digits included
        assert file.attrs["inputPattSize"] == 12


def test_no_image_is_in_two_sets(composed):
    sources = {}
    for name in SETS:
        with h5py.File(composed / (name + ".hdf"), "r") as file:
            sources[name] = set(file["sourceImages"][()].tolist())
    assert all(sources.values())
    for a, b in itertools.combinations(SETS, 2):
        assert not sources[a] & sources[b]


def test_labels_are_those_of_the_images(composed):
    with h5py.File(os.path.join(ROOT, "demos", "digits", "digits.hdf"), "r") as digits:
        labels = digits["labels"][()]
    with h5py.File(composed / "heldout.hdf", "r") as file:
        np.testing.assert_array_equal(file["targets/data/classes"][()], labels[file["sourceImages"][()]])


@pytest.mark.slow
def test_same_seed_same_bytes(composed, tmp_path):
    assert run_tool(str(tmp_path / "again"), *SMALL).returncode == 0
    assert run_tool(str(tmp_path / "other"), "--seed", "2", *SMALL).returncode == 0
    first = (composed / "train.hdf").read_bytes()
    assert (tmp_path / "again" / "train.hdf").read_bytes() == first
    assert (tmp_path / "other" / "train.hdf").read_bytes() != first
    assert sorted(os.listdir(tmp_path / "again")) == ["dev.hdf", "heldout.hdf", "train.hdf"]


def test_dataset_reads_it(composed):
    from returnn_tf.datasets import Dataset

    dataset = Dataset.from_config({"class": "HDFDataset", "files": [str(composed / "heldout.hdf")]})
    sequences = list(dataset.sequences(epoch=1))
    assert [seq.tag for seq in sequences] == ["heldout-%05d" % i for i in range(15)]
    assert all(seq.data["data"].shape[1] == 12 and 3 <= len(seq.data["classes"]) <= 8 for seq in sequences)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--digits", "nowhere.hdf"], "there is no file 'nowhere.hdf'"),
        (["--train", "0"], "must be at least 1"),
        (["--min-digits", "9"], "--min-digits <= --max-digits"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, message):
    done = run_tool(str(tmp_path / "out"), *arguments)
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_help():
    done = run_tool("--help")
    assert done.returncode == 0 and "No scanned digit is used in two of\nthe files" in done.stdout
