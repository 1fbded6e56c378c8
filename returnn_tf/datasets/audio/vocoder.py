"""The phase vocoder: changes the speed of audio without its pitch, and the pitch without the speed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.util.filters import periodic_hann

_SIZE = 2048
_SHIFT = _SIZE // 4


def stretch(audio: NDArray[Any], rate: float) -> NDArray[Any]:
    """Return audio ``rate`` times as fast, of ``round(time / rate)`` samples and with the same pitch.

    The magnitudes of spectra are interpolated at the new times, and each phase advances by what it advances there from
    one frame to the next (Flanagan & Golden 1966).

    :param audio: [time]
    """
    num_samples = round(len(audio) / rate)
    spectra = _transform(audio)
    times = np.arange(0, len(spectra), rate)
    before = times.astype(np.int64)
    spectra = np.pad(spectra, ((0, 2), (0, 0)))
    old, new = spectra[before], spectra[before + 1]
    part = (times - before)[:, None]
    magnitudes = (1 - part) * np.abs(old) + part * np.abs(new)
    expected = 2 * np.pi * _SHIFT / _SIZE * np.arange(_SIZE // 2 + 1)
    deviation = np.angle(new) - np.angle(old) - expected
    advance = expected + deviation - 2 * np.pi * np.round(deviation / (2 * np.pi))
    phases = np.angle(spectra[0]) + np.cumsum(advance, axis=0) - advance
    return _inverse(magnitudes * np.exp(1j * phases), num_samples)


def shift_pitch(audio: NDArray[Any], semitones: float) -> NDArray[Any]:
    """Return audio of the same length with a pitch that is higher by a number of semitones.

    :param audio: [time]
    """
    with optional_package("for random_permute"):
        import soxr
    rate = 2.0 ** (-semitones / 12)
    return _of_length(soxr.resample(stretch(audio, rate), 1 / rate, 1.0, quality="HQ"), len(audio))


def _transform(audio: NDArray[Any]) -> NDArray[Any]:
    with optional_package("for random_permute"):
        import scipy.fft
    padded = np.pad(audio, _SIZE // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[::_SHIFT]
    result: NDArray[Any] = scipy.fft.rfft(frames * periodic_hann(_SIZE), axis=-1)
    return result


def _inverse(spectra: NDArray[Any], num_samples: int) -> NDArray[Any]:
    """Return the signal [num_samples] whose frames have these spectra, as the least squares fit of Griffin & Lim."""
    with optional_package("for random_permute"):
        import scipy.fft
    window = periodic_hann(_SIZE)
    frames = scipy.fft.irfft(spectra, _SIZE, axis=-1) * window
    total = (len(frames) - 1) * _SHIFT + _SIZE
    signal, weights = np.zeros(total), np.zeros(total)
    for i, frame in enumerate(frames):
        signal[i * _SHIFT : i * _SHIFT + _SIZE] += frame
        weights[i * _SHIFT : i * _SHIFT + _SIZE] += window**2
    signal = np.divide(signal, weights, out=signal, where=weights > 1e-8)[_SIZE // 2 :]
    return _of_length(signal, num_samples)


def _of_length(signal: NDArray[Any], num_samples: int) -> NDArray[Any]:
    """Cut a signal, or fill it up with zeros."""
    return np.pad(signal, (0, max(0, num_samples - len(signal))))[:num_samples]
