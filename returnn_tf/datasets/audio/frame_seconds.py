"""How much time a frame of features stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.datasets.core.base import Dataset


def frame_seconds(dataset: Dataset) -> Optional[float]:
    """Return the seconds between the frames of "data", or None where the options of the dataset do not tell them."""
    audio: Any = getattr(dataset.opts, "audio", None)
    return seconds_of_frame(audio) if isinstance(audio, Mapping) else None


def seconds_of_frame(audio: Mapping[str, Any]) -> Optional[float]:
    """Return the seconds between the frames of features by the option ``audio``; None if it does not tell them."""
    if audio.get("features") == "raw":
        rate = audio.get("sample_rate")
        return 1 / rate if rate else None
    return float(audio.get("step_len") or 0.01) * int(audio.get("join_frames") or 1)
