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
