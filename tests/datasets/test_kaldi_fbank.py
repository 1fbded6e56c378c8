"""Features ``kaldi_fbank``, against numbers that kaldi-native-fbank 1.23 computed, and wrong options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.audio import AudioFeatures


def _features(audio: NDArray[Any], rate: int, bands: int, options: dict[str, Any], **others: Any) -> NDArray[Any]:
    audio_options = {"features": "kaldi_fbank", "num_feature_filters": bands, "feature_options": options, **others}
    features = AudioFeatures.make({"peak_normalization": False, **audio_options}, owner="dataset 'train'")
    return features.extract(audio, rate, rng=np.random.RandomState(1), seq_name="a")


def _sweep(samples: int) -> NDArray[Any]:
    time = np.arange(samples)
    slow, fast = np.sin(time * time * 2e-4) * np.cos(time * 0.002), np.sin(time * time * 0.37)
    result: NDArray[Any] = (0.3 * slow + 0.05 * fast).astype("float32")
    return result


#: Sample rate, number of samples of `_sweep`, feature_options, and the energies of 4 bands, without dither.
RECORDED: list[tuple[int, int, dict[str, Any], list[list[float]]]] = [
    (
        16000,
        1000,
        {},
        [
            [0.3303, 0.4796, 2.3388, 3.5772],
            [2.1696, 0.8233, 2.3611, 3.6105],
            [2.9521, 0.6885, 2.2572, 3.7112],
            [2.6297, 1.3488, 2.2257, 3.7011],
            [0.9808, 1.0306, 1.9708, 3.7180],
            [1.3711, 2.3335, 2.2269, 3.7554],
        ],
    ),
    (
        16000,
        1000,
        {"snip_edges": True},
        [
            [1.8170, 0.8021, 2.3542, 3.6173],
            [2.8431, 0.6392, 2.2782, 3.6891],
            [2.8372, 1.2248, 2.2501, 3.7127],
            [1.5051, 1.1706, 1.9481, 3.7210],
        ],
    ),
    (
        8000,
        300,
        {"fmin": 100, "fmax": 3000, "preemphasis": 0.5},
        [
            [-0.7234, -0.7857, 0.6060, 1.1647],
            [-0.4417, -0.4241, 0.4166, 1.2802],
            [1.5717, 0.0596, 0.5347, 1.0091],
            [2.2528, 0.0790, 0.6878, 1.0622],
        ],
    ),
    (11025, 70, {"fmax": 0, "preemphasis": 0}, [[3.7579, 1.5760, 2.0920, 2.1697]]),
]


@pytest.mark.parametrize("rate, samples, options, expected", RECORDED)
def test_recorded(rate: int, samples: int, options: dict[str, Any], expected: list[list[float]]) -> None:
    """Frames at both edges, mirrored several times where the audio is shorter than a frame; complete ones alone."""
    got = _features(_sweep(samples), rate, 4, options)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-4)


def test_steps_longer_than_frames() -> None:
    """The middle of each frame is that of its step: each is computed from the samples of its step alone."""
    parts = [_sweep(800)[:400] * factor for factor in (1.0, 0.5, 0.25)]
    audio = np.concatenate([np.pad(part, (200, 200)) for part in parts])
    got = _features(audio, 16000, 6, {}, step_len=0.05)
    alone = [_features(part, 16000, 6, {"snip_edges": True}) for part in parts]
    np.testing.assert_allclose(got, np.concatenate(alone), rtol=0, atol=1e-5)


def test_blocks_of_frames() -> None:
    """A frame in the middle of long audio is as in a part of it."""
    audio = np.random.RandomState(2).normal(0, 0.1, 160 * 600)
    whole, part = (_features(x, 16000, 80, {}) for x in (audio, audio[160 * 250 : 160 * 270]))
    assert whole.shape == (600, 80)
    np.testing.assert_allclose(whole[252:268], part[2:18], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options, text", [
    ({"feature_options": {"fmin": 5000.0, "fmax": 4000.0}}, "from fmin=5000.0 to fmax=4000.0 Hz"),
    ({"feature_options": {"fmax": 9000.0}}, "half the sample rate, 8000 Hz"),
    ({"feature_options": {"fmax": -7990.0}}, "to fmax=-7990.0"),
    ({"num_feature_filters": 200}, "filter 2 lies between two bins of the Fourier transform of 512 samples"),
    ({"feature_options": {"preemphasis": 2}}, "preemphasis"),
    ({"feature_options": {"center": True}}, "unknown option 'center'"),
])  # fmt: skip
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    """Said when the dataset is made."""
    with pytest.raises(ConfigError) as error:
        AudioFeatures.make({"features": "kaldi_fbank", "sample_rate": 16000, **options}, owner="x")
    assert text in str(error.value)


@pytest.mark.parametrize("samples, options", [(399, {"snip_edges": True}), (79, {})])
def test_too_short(samples: int, options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="the audio has %d samples, fewer than" % samples):
        _features(_sweep(samples), 16000, 4, options)
