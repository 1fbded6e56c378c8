"""How much time a frame of features stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.datasets.core.base import Dataset

#: Options of datasets with a function that may change the number of frames of the dataset inside.
_CHANGES = ("map_seq", "map_seq_stream")


def frame_seconds(dataset: Dataset, key: str = "data") -> Optional[float]:
    """Return the seconds between the frames of a data key, or None where the options of the dataset do not tell them.

    Those of the datasets inside of it count, if they agree and no function changes their data; of a `MetaDataset` those
    of the dataset that has the key.
    """
    found = set(_found(vars(dataset.opts), key))
    return found.pop() if len(found) == 1 else None


def _found(options: Any, key: str) -> Iterator[Optional[float]]:
    """Yield the seconds of each option ``audio`` that may be that of a data key, None where they are not known."""
    if isinstance(options, Mapping):
        if isinstance(options.get("audio"), Mapping):
            yield seconds_of_frame(options["audio"])
        if any(options.get(name) is not None for name in _CHANGES):
            yield None
        inner = _in_meta_dataset(options, key)
        if inner is not None:
            yield from _found(*inner)
            return
        for name, value in options.items():
            yield from () if name == "audio" else _found(value, key)
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from _found(value, key)


def _in_meta_dataset(options: Mapping[Any, Any], key: str) -> Optional[tuple[Any, str]]:
    """Return the options of the dataset with a data key, and its key there; None for options of another dataset."""
    datasets, places = options.get("datasets"), options.get("data_map")
    if not isinstance(datasets, Mapping) or not places:
        return None
    place = dict(places).get(key)
    return (datasets.get(place[0]), place[1]) if isinstance(place, (list, tuple)) else None


def seconds_of_frame(audio: Mapping[str, Any]) -> Optional[float]:
    """Return the seconds between the frames of features by the option ``audio``; None if it does not tell them."""
    if audio.get("features") == "raw":
        rate = audio.get("sample_rate")
        return 1 / rate if rate else None
    return float(audio.get("step_len") or 0.01) * int(audio.get("join_frames") or 1)
