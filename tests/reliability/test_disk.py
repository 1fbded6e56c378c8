"""A disk that is full, really: bounded attempts, then an end with the reason; what was there before stays whole."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Callable

import pytest

from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from tests.reliability import toy

pytestmark = pytest.mark.slow  # each starts processes

SMALL, LARGE = "size=3m", "size=40m"  # two checkpoints of the toy fit into the small one, a third does not


@pytest.fixture
def disk(tmp_path: pathlib.Path) -> Iterator[Callable[[str], None]]:
    """Yield a file system in memory at ``net``, of a size that can be changed."""
    folder = tmp_path / "net"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", SMALL, "tmpfs", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        pytest.skip("mounting a tmpfs needs rights: %s" % done.stdout.decode().strip())

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", "remount," + size, str(folder)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path, disk: Callable[[str], None]
) -> None:
    toy.write_config(tmp_path, save_every_steps=15)
    assert warm.run(tmp_path) == 1, toy.text_of(tmp_path)
    text = toy.text_of(tmp_path)
    assert "can't be written: " in text and "Traceback" not in text
    model = str(tmp_path / "net/toy")
    stored = [*find_step_checkpoints(model).values(), *find_checkpoints(model).values()]
    assert len(stored) == 2 and [checkpoint.validate(path) for path in stored] == [None, None]
    assert [name for name in os.listdir(str(tmp_path / "net")) if ".tmp" in name or "lock" in name] == []
    disk(LARGE)
    assert warm.run(tmp_path) == 0, toy.text_of(tmp_path)
    assert "Resuming within epoch" in toy.text_of(tmp_path)
    toy.assert_same_end(tmp_path, undisturbed)


_WRITE_HDF = """
import numpy as np
from returnn_tf.config import DataError
from returnn_tf.datasets import HDFWriter

try:
    with HDFWriter("net/out.hdf", dim=40) as writer:
        for number in range(200):
            writer.insert_batch(np.ones((4, 100, 40), "float32"), [100] * 4, ["%i-%i" % (number, i) for i in range(4)])
except DataError as exc:
    print(exc)
"""


def test_an_hdf_file_on_a_full_disk(tmp_path: pathlib.Path, disk: Callable[[str], None]) -> None:
    """The HDF5 library crashes at the end of a process if it could not write all that it holds."""
    command = [sys.executable, "-c", _WRITE_HDF]
    done = subprocess.run(
        command, cwd=str(tmp_path), env=toy.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout.decode()
    text = "HDF file 'net/out.hdf' can't be written: No space left on device. Free some space, or choose another path\n"
    assert done.stdout.decode() == text
    assert os.listdir(str(tmp_path / "net")) == []
