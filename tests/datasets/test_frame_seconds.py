"""How much time a frame of features stands for."""

from __future__ import annotations

import types
from typing import Any, Optional

import pytest

from returnn_tf.datasets.audio.frame_seconds import frame_seconds


@pytest.mark.parametrize(
    "audio, seconds",
    [
        (None, None),
        ({"features": "raw", "sample_rate": 8000}, 1 / 8000),
        ({"features": "raw"}, None),  # of any rate
        ({}, 0.01),
        ({"step_len": 0.02, "join_frames": 3}, 0.06),
    ],
)
def test_frame_seconds(audio: Any, seconds: Optional[float]) -> None:
    dataset: Any = types.SimpleNamespace(opts=types.SimpleNamespace(audio=audio))
    assert frame_seconds(dataset) == (None if seconds is None else pytest.approx(seconds))


AUDIO = {"class": "OggZipDataset", "audio": {"step_len": 0.02}}
OTHER = {"class": "OggZipDataset", "audio": {}}


@pytest.mark.parametrize(
    "inner, seconds",
    [
        ({"dataset": AUDIO}, 0.02),
        ({"datasets": {"a": AUDIO, "b": {"class": "HDFDataset", "files": ["x"]}}}, 0.02),
        ({"datasets": [AUDIO, AUDIO]}, 0.02),
        ({"datasets": [AUDIO, OTHER]}, None),  # different ones
        ({"dataset": AUDIO, "map_seq": len}, None),  # it may change the frames
        ({"dataset": {"class": "HDFDataset"}}, None),
        ({"datasets": {"a": AUDIO, "b": OTHER}, "data_map": {"data": ("a", "data"), "more": ("b", "data")}}, 0.02),
        ({"datasets": {"a": AUDIO, "b": OTHER}, "data_map": {"more": ("a", "data"), "data": ["b", "data"]}}, 0.01),
        ({"datasets": {"a": AUDIO, "b": OTHER}, "data_map": [("data", ("a", "data"))]}, 0.02),
        ({"datasets": {"a": AUDIO, "b": OTHER}, "data_map": {("a", "data"): "data", ("b", "data"): "data"}}, None),
    ],
)
def test_frame_seconds_of_datasets_inside(inner: dict[str, Any], seconds: Optional[float]) -> None:
    dataset: Any = types.SimpleNamespace(opts=types.SimpleNamespace(**inner))
    assert frame_seconds(dataset) == seconds
