"""Features of audio block by block: those of all of it, bit by bit; what needs all of it is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config.errors import ConfigError, DataError
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.stream import FeatureStream, lookahead_seconds

RATE = 8000
KINDS: dict[str, dict[str, Any]] = {
    "log_mel": {"features": "log_mel_filterbank", "num_feature_filters": 23},
    "odd_window": {"features": "log_mel_filterbank", "num_feature_filters": 8, "window_len": 201 / RATE},
    "db_mel": {"features": "db_mel_filterbank"},
    "db_mel_complete": {"features": "db_mel_filterbank", "feature_options": {"center": False}},
    "kaldi": {"features": "kaldi_fbank", "num_feature_filters": 40},
    "kaldi_short": {"features": "kaldi_fbank", "num_feature_filters": 8, "window_len": 0.016, "step_len": 0.02},
    "kaldi_complete": {"features": "kaldi_fbank", "num_feature_filters": 40, "feature_options": {"snip_edges": False}},
    "linear": {"features": "linear_spectrogram", "num_feature_filters": 128},
    "linear_complete": {
        "features": "linear_spectrogram", "num_feature_filters": 128, "feature_options": {"center": False},
    },
    "raw": {"features": "raw"},
    "channels": {"features": "raw", "num_channels": 2},
}  # fmt: skip
CHANGES: list[dict[str, Any]] = [
    {},
    {"preemphasis": 0.97},
    {"with_delta": 2},
    {"with_delta": True, "join_frames": 3, "norm_mean": 1.5, "norm_std_dev": 2.0},
]
#: Sizes of blocks of samples, again and again.
BLOCKS = [[1], [7, 0, 500], [80], [1000, 3], [100000]]


def _audio(samples: int, channels: int = 0) -> np.ndarray:
    shape = (samples, channels) if channels else (samples,)
    return np.random.default_rng(samples).normal(0, 0.2, shape).astype("float32")


def _features(options: dict[str, Any]) -> AudioFeatures:
    return AudioFeatures.make({"peak_normalization": False, **options}, owner="dataset 'train'")


def _whole(features: AudioFeatures, samples: np.ndarray) -> np.ndarray:
    return features.extract(samples, RATE, rng=np.random.RandomState(1), seq_name="x")


def _streamed(features: AudioFeatures, samples: np.ndarray, sizes: list[int]) -> np.ndarray:
    stream, parts, place, turn = FeatureStream(features, RATE), [], 0, 0
    while place < len(samples):
        size = sizes[turn % len(sizes)]
        parts.append(stream.add(samples[place : place + size]))
        place, turn = place + size, turn + 1
    return np.concatenate([*parts, stream.end()])


@pytest.mark.parametrize("sizes", BLOCKS, ids=str)
@pytest.mark.parametrize("change", CHANGES, ids=["plain", "preemphasis", "delta", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_as_of_all_of_it(kind: str, change: dict[str, Any], sizes: list[int]) -> None:
    features = _features({**KINDS[kind], **change})
    for samples in (1613, 4003) if sizes != [1] else (1453,):
        audio = _audio(samples, 2 if kind == "channels" else 0)
        np.testing.assert_array_equal(_streamed(features, audio, sizes), _whole(features, audio))


@pytest.mark.parametrize("samples", [1, 39, 40, 41, 99, 100, 101, 199, 200, 201, 280, 281, 399])
@pytest.mark.parametrize("kind", KINDS)
def test_short_audio(kind: str, samples: int) -> None:
    """The same features, or the same error."""
    features, audio = _features(KINDS[kind]), _audio(samples, 2 if kind == "channels" else 0)
    try:
        expected = _whole(features, audio)
    except DataError as exc:
        with pytest.raises(DataError) as found:
            _streamed(features, audio, [13])
        assert str(found.value) == str(exc)
        return
    np.testing.assert_array_equal(_streamed(features, audio, [13]), expected)


@pytest.mark.parametrize(
    "options, names",
    [
        ({"peak_normalization": True}, ["peak_normalization"]),
        ({"features": "mfcc"}, ["'mfcc'", "loudest"]),
        ({"features": "log_log_mel_filterbank"}, ["'log_log_mel_filterbank'"]),
        ({"norm_mean": "per_seq"}, ["norm_mean", "per_seq"]),
        ({"norm_std_dev": "per_seq", "peak_normalization": True}, ["norm_std_dev", "peak_normalization"]),
        ({"features": lambda **_: None}, ["a function"]),
        ({"pre_process": lambda **_: None}, ["pre_process"]),
        ({"post_process": lambda **_: None}, ["post_process"]),
    ],
)
def test_what_needs_all_of_the_audio(options: dict[str, Any], names: list[str]) -> None:
    """One error with all of the options."""
    features = _features({"features": "log_mel_filterbank", **options})
    with pytest.raises(ConfigError) as found:
        FeatureStream(features, RATE)
    assert all(name in str(found.value) for name in ["dataset 'train': audio", *names])


@pytest.mark.parametrize(
    "kind, change, samples", [("log_mel", {}, 20), ("log_mel", {"with_delta": 1}, 340), ("raw", {}, 0)]
)
def test_lookahead(kind: str, change: dict[str, Any], samples: int) -> None:
    """A frame is there with these samples after its step, and not before."""
    features = _features({**KINDS[kind], **change})
    assert lookahead_seconds(features, RATE) == samples / RATE
    step = 1 if kind == "raw" else 80
    audio = _audio(50 * step + samples)
    stream = FeatureStream(features, RATE)
    assert len(stream.add(audio[:-1])) == 49 and len(stream.add(audio[-1:])) == 1


def test_bad_samples() -> None:
    features = _features({"features": "log_mel_filterbank", "sample_rate": RATE})
    for samples in (np.full(90, np.nan, "float32"), np.zeros((90, 2), "float32")):
        stream = FeatureStream(features, RATE)
        stream.add(_audio(300))
        with pytest.raises(DataError):
            stream.add(samples)
    with pytest.raises(DataError, match="sample_rate"):
        FeatureStream(features, 2 * RATE).add(_audio(300))
