"""Event files, and a disk on which they can't be written."""

from __future__ import annotations

import pathlib

import pytest

from returnn_tf.config import Config
from returnn_tf.engine.monitoring.summaries import Summaries


def test_a_folder_that_can_not_be_written_switches_them_off(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training matters more."""
    summaries = Summaries.from_config(Config({"tf_log_dir": str(tmp_path)}))
    summaries.epoch("train", 1, {"loss": 1.0})
    (tmp_path / "dev").write_text("a file in place of a folder")
    for epoch in (1, 2):
        summaries.epoch("dev", epoch, {"loss": 1.0})
    summaries.close()
    out = capsys.readouterr().out
    assert out.count("Warning: Event files in tf_log_dir") == 1 and "can't be written and are now off" in out
    assert summaries.folder is None and len(list((tmp_path / "train").iterdir())) == 1
