"""Where transcribe cuts long audio: no part is too long, and cuts are in pauses."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.cli.transcribe.audio import cuts

RATE = 1000


def _speech(*seconds: float, pause: float = 0.4, channels: int = 0) -> np.ndarray:
    """Return noise of these durations, with faint noise between."""
    rng = np.random.default_rng(1)
    parts = []
    for each in seconds:
        parts += [rng.normal(size=round(each * RATE)), 0.01 * rng.normal(size=round(pause * RATE))]
    samples = np.concatenate(parts).astype("float32")
    return np.stack([samples] * channels, axis=1) if channels else samples


@pytest.mark.parametrize("longest", [None, 3.0, 2.9])
def test_short_audio_is_not_cut(longest: float) -> None:
    assert cuts(_speech(1.1, 1.0), RATE, longest) == []


@pytest.mark.parametrize("channels", [0, 1, 2])
@pytest.mark.parametrize("seconds, longest", [([1.0] * 9, 3.0), ([2.0, 0.5, 0.5, 3.0, 0.2], 4.0), ([1.5] * 20, 2.0)])
def test_cuts_are_in_pauses(seconds: list[float], longest: float, channels: int) -> None:
    ends = np.cumsum(np.array(seconds) + 0.4)
    pauses = [(round(RATE * (end - 0.4)), round(RATE * end)) for end in ends]
    samples = _speech(*seconds, channels=channels)
    found = cuts(samples, RATE, longest)
    assert found and all(any(first + 90 <= place <= past - 90 for first, past in pauses) for place in found)
    borders = [0, *found, len(samples)]
    assert all(0 < past - first <= longest * RATE for first, past in zip(borders, borders[1:]))


@pytest.mark.parametrize(
    "samples",
    [np.zeros(10007, "float32"), np.ones(10007, "float32"), _speech(10.0)],
    ids=["silence", "constant", "noise"],
)
@pytest.mark.parametrize("longest", [1.0, 1.37, 4.999, 10.0])
def test_audio_without_pauses(samples: np.ndarray, longest: float) -> None:
    """It is cut somewhere, into parts that are neither empty nor too long."""
    borders = [0, *cuts(samples, RATE, longest), len(samples)]
    assert all(0 < past - first <= longest * RATE for first, past in zip(borders, borders[1:]))
    assert len(borders) - 1 <= 2 + 2 * len(samples) / (longest * RATE)
