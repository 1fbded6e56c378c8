"""How much time a frame of features stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.datasets.core.base import Dataset

#: Options of datasets with a function that may change the number of frames of the dataset inside.
_CHANGES = ("map_seq", "map_seq_stream")


def frame_seconds(dataset: Dataset) -> Optional[float]:
    """Return the seconds between the frames of "data", or None where the options of the dataset do not tell them.

    Those of the datasets inside of it count, if they agree and no function changes their data.
    """
    found = set(_found(vars(dataset.opts)))
    return found.pop() if len(found) == 1 else None


def _found(options: Any) -> Iterator[Optional[float]]:
    """Yield the seconds of each option ``audio``, None where they are not known."""
    if isinstance(options, Mapping):
        if isinstance(options.get("audio"), Mapping):
            yield seconds_of_frame(options["audio"])
        if any(options.get(name) is not None for name in _CHANGES):
            yield None
        for name, value in options.items():
            yield from () if name == "audio" else _found(value)
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from _found(value)


def seconds_of_frame(audio: Mapping[str, Any]) -> Optional[float]:
    """Return the seconds between the frames of features by the option ``audio``; None if it does not tell them."""
    if audio.get("features") == "raw":
        rate = audio.get("sample_rate")
        return 1 / rate if rate else None
    return float(audio.get("step_len") or 0.01) * int(audio.get("join_frames") or 1)
