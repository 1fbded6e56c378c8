"""Event files, and a disk on which they can't be written."""

from __future__ import annotations

import pathlib

import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.monitoring.summaries import Summaries
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.util.lazy_tf import tf


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


def test_losses_of_steps(tmp_path: pathlib.Path) -> None:
    """By setting: each loss as it enters the objective, and its sum over the batch, also of one that is a mean."""
    layer = {"class": "softmax", "from": "data", "loss": "ce", "target": "classes", "is_output_layer": True}
    config = Config(
        {
            "behavior_version": 21,
            "extern_data": {"data": {"dim": 2}, "classes": {"dim": 3, "sparse": True}},
            "network": {
                "sum": {**layer, "loss_scale": 0.5},
                "mean": {**layer, "loss_opts": {"use_normalized_loss": True}},
            },
            "tf_log_dir": str(tmp_path),
            "debug_objective_loss_summaries": True,
            "debug_unnormalized_loss_summaries": True,
        }
    )
    result = StepResult(0.0, losses={"sum": 6.0, "mean": 2.0}, counts={"sum": 4.0, "mean": 4.0}, step=3)
    summaries = Summaries.from_config(config)
    summaries.step(result, Network.from_config(config, train=True).plan.losses)
    summaries.close()
    (file,) = (tmp_path / "train").iterdir()
    events = [value for event in tf.compat.v1.train.summary_iterator(str(file)) for value in event.summary.value]
    found = {value.tag: float(tf.make_ndarray(value.tensor)) for value in events}
    expected = {"cost/sum": 1.5, "cost/mean": 2, "objective/sum": 3, "objective/mean": 2, "sum/sum": 6, "sum/mean": 8}
    assert {name: found["step/%s" % name] for name in expected} == expected
