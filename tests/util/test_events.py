"""Event files without TensorBoard are what TensorBoard's own functions write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_tf.util.events import write_images, write_scalar
from returnn_tf.util.lazy_tf import tf

IMAGES = np.random.RandomState(1).uniform(-0.1, 1.1, (2, 3, 5, 3)).astype("float32")

WITHOUT = """
import sys
sys.modules["tensorboard"] = None
import tensorflow as tf
from returnn_tf.util.events import write_images, write_scalar
with tf.summary.create_file_writer(sys.argv[1]).as_default():
    write_scalar("a/b", 3, 7)
    write_images("c", [[[[0.5]]]], 8)
"""


def read(folder: Path) -> list[Any]:
    """Return step, tag, metadata and value of all entries."""
    (path,) = folder.iterdir()
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
    return [(e.step, v.tag, v.metadata, tf.make_ndarray(v.tensor).tolist()) for e in events for v in e.summary.value]


def test_as_tensorboard_writes_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for folder, scalar, images in (
        ("ours", write_scalar, write_images),
        ("theirs", tf.summary.scalar, tf.summary.image),
    ):
        writer = tf.summary.create_file_writer(str(tmp_path / folder))
        with writer.as_default():
            scalar("loss/x", 0.3, step=1)
            scalar("count", np.int64(7), step=2)
            images("y", IMAGES, step=3)
        writer.close()
    ours, theirs = read(tmp_path / "ours"), read(tmp_path / "theirs")
    assert [x[:2] for x in ours] == [x[:2] for x in theirs] == [(1, "loss/x"), (2, "count"), (3, "y")]
    for mine, other in zip(ours, theirs):
        assert mine[3] == other[3]
        assert mine[2].plugin_data.plugin_name == other[2].plugin_data.plugin_name


@pytest.mark.slow
def test_without_tensorboard(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], check=True)
    assert [(entry[0], entry[1]) for entry in read(tmp_path)] == [(7, "a/b"), (8, "c")]
