"""How long the audio of a dataset is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from returnn_tf.datasets.audio.frame_seconds import frame_seconds
from returnn_tf.datasets.core.base import Dataset


def duration(seconds: float) -> str:
    """Return a duration as text, in the unit that fits: "4.20 seconds", "12.35 minutes", "3.00 hours"."""
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return "%.2f %s" % (seconds / size, unit)
    return "%.2f seconds" % seconds


def seconds_of(dataset: Dataset, frames: Mapping[str, int]) -> Optional[float]:
    """Return the seconds of audio, or None where the dataset has no features of audio.

    :param frames: data key -> frames of all sequences
    """
    seconds = frame_seconds(dataset)
    return None if seconds is None or "data" not in frames else frames["data"] * seconds
