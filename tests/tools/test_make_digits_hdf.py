"""The tool which stored the scanned digits, and the file that it made."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "make_digits_hdf.py")


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("make_digits_hdf", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_file():
    path = os.path.join(ROOT, "demos", "digits", "digits.hdf")
    assert os.path.getsize(path) < 100_000
    with h5py.File(path, "r") as file:
        images, labels = file["images"][()], file["labels"][()]
        assert "CC BY 4.0" in file.attrs["licence"] and file.attrs["doi"] == "10.24432/C50P49"
    assert images.shape == (1797, 8, 8) and images.dtype == "uint8" and images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0] and labels[:4].tolist() == [0, 1, 2, 3]


def test_write_digits(tool, tmp_path):
    path = tmp_path / "digits.hdf"
    images = np.arange(3 * 64).reshape(3, 8, 8) % 17.0
    tool.write_digits(str(path), images, [4, 5, 6])
    with h5py.File(path, "r") as file:
        np.testing.assert_array_equal(file["images"][()], images)
        assert file["labels"][()].tolist() == [4, 5, 6]
    assert os.listdir(tmp_path) == ["digits.hdf"]


@pytest.mark.parametrize("images", [np.zeros((3, 8, 7)), np.full((3, 8, 8), 17), np.full((3, 8, 8), 0.5)])
def test_wrong_images(tool, tmp_path, images):
    with pytest.raises(ValueError, match="whole numbers 0 .. 16"):
        tool.write_digits(str(tmp_path / "digits.hdf"), images, [4, 5, 6])
    assert not os.listdir(tmp_path)


def test_help():
    done = subprocess.run([sys.executable, TOOL, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "scikit-learn" in done.stdout
