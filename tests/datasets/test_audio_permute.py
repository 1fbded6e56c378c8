"""Random changes of audio: the order of draws, and what each change does to a tone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.stretch import shift_pitch, stretch

RATE = 16000
TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
NEVER: dict[str, Any] = {
    "rnd_zoom_switch": -1.0,
    "rnd_stretch_switch": 0,
    "rnd_pitch_switch": -1.0,
    "rnd_scale_lower": 1.0,
}


def frequency(audio: np.ndarray) -> float:
    """Return the loudest frequency in Hz, without the ends."""
    inner = audio[2000:-2000]
    return float(np.argmax(np.abs(np.fft.rfft(inner * np.hanning(len(inner)), 8 * RATE)))) / 8


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.2])
def test_stretch(rate: float) -> None:
    """Another length, the same pitch, the same loudness."""
    got = stretch(TONE, rate)
    assert len(got) == round(len(TONE) / rate)
    assert frequency(got) == pytest.approx(440, abs=1)
    assert np.abs(got[4000:-4000]).max() == pytest.approx(0.5, rel=0.12)  # phases of neighbouring bins drift apart
    if rate == 1.0:
        np.testing.assert_allclose(got, TONE, atol=1e-6)


@pytest.mark.parametrize("semitones", [-1.0, 0.3, 12.0])
def test_pitch(semitones: float) -> None:
    """The same length, another pitch."""
    got = shift_pitch(TONE, semitones)
    assert len(got) == len(TONE)
    assert frequency(got) == pytest.approx(440 * 2 ** (semitones / 12), rel=0.005)


def permuted(options: Any, seed: int, audio: np.ndarray = TONE) -> tuple[np.ndarray, np.random.RandomState]:
    """Return raw features without normalisation, and the generator afterwards."""
    rng = np.random.RandomState(seed)
    features = AudioFeatures.make(
        {"features": "raw", "random_permute": options, "num_channels": 2 if audio.ndim == 2 else None}, owner="x"
    )
    return features.extract(audio, RATE, rng=rng, seq_name="a"), rng


@pytest.mark.parametrize("seed", range(8))
def test_draws(seed: int) -> None:
    """The factor, then a number for each switch, followed by the amount if it is on."""
    got, rng = permuted(True, seed)
    draws = np.random.RandomState(seed)
    draws.uniform(0.8, 1.0)
    length = RATE
    for switch, lower, upper in (("zoom", 0.9, 1.1), ("stretch", 0.9, 1.2), ("pitch", -1, 1)):
        if draws.uniform() < 0.2:
            amount = draws.uniform(lower, upper)
            length = {"zoom": round(length * amount), "stretch": round(length / amount), "pitch": length}[switch]
    assert len(got) == length
    assert rng.uniform() == draws.uniform()


def test_switches() -> None:
    """Off changes the loudness alone; on changes always; nothing is drawn without the option."""
    got, rng = permuted({**NEVER, "rnd_scale_lower": 0.5, "rnd_scale_upper": 0.5}, 1)
    np.testing.assert_allclose(got[:, 0], 0.5 * TONE / np.abs(TONE).max(), rtol=1e-6)
    assert rng.uniform() == np.random.RandomState(1).uniform(size=5)[4]
    for name, low, high in (("zoom", 0.5, 0.5), ("stretch", 2.0, 2.0), ("pitch", 12.0, 12.0)):
        options = {**NEVER, "rnd_%s_switch" % name: 1.5, "rnd_%s_lower" % name: low, "rnd_%s_upper" % name: high}
        got, _ = permuted(options, 1)
        assert (len(got), round(frequency(got[:, 0]), -1)) == {
            "zoom": (RATE // 2, 880),
            "stretch": (RATE // 2, 440),
            "pitch": (RATE, 880),
        }[name]
    for off in (None, False, {}, 0):
        got, rng = permuted(off, 1)
        assert rng.uniform() == np.random.RandomState(1).uniform()


def test_channels_and_short_audio() -> None:
    """Each channel is changed in the same way; audio of a sample is no mistake."""
    got, _ = permuted(
        {"rnd_zoom_switch": 1, "rnd_stretch_switch": 1, "rnd_pitch_switch": 1}, 3, np.stack([TONE, -TONE], 1)
    )
    np.testing.assert_allclose(got[:, 0], -got[:, 1], atol=1e-5)
    for length in (1, 2, 100):
        assert len(
            permuted({"rnd_zoom_switch": 1, "rnd_stretch_switch": 1, "rnd_pitch_switch": 1}, 3, TONE[1 : 1 + length])[0]
        )
