"""Another speed or pitch of audio, one without the other, by a phase vocoder."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.util.filters import periodic_hann

#: Frames overlap so many times.
_OVERLAP = 4
#: The samples of a frame by default; at 22 kHz they are 93 ms.
FRAME_SIZE = 2048


def stretch(audio: NDArray[Any], rate: float, *, size: int = FRAME_SIZE) -> NDArray[Any]:
    """Return audio ``rate`` times as fast, of ``round(time / rate)`` samples and with the same pitch.

    The magnitudes of spectra are interpolated at the new times, and each phase advances by what it advances there from
    one frame to the next (Flanagan & Golden 1966).

    :param audio: [time]; its precision is that of the computation
    :param size: samples of a frame, a multiple of 4
    """
    num_samples = round(len(audio) / rate)
    spectra = _transform(audio, size)
    times = np.arange(0, len(spectra), rate)
    before = times.astype(np.int64)
    part = (times - before)[:, None].astype(audio.dtype)
    spectra = np.pad(spectra, ((0, 2), (0, 0)))
    magnitudes = np.abs(spectra)
    turns = np.divide(spectra, magnitudes, out=np.ones_like(spectra), where=magnitudes > 0)  # exp(1j * phase)
    advances = turns[before + 1] * turns[before].conj()
    advances[1:] = advances[:-1]  # a frame begins where the one before has ended
    advances[0] = turns[0]
    magnitudes = (1 - part) * magnitudes[before] + part * magnitudes[before + 1]
    return _inverse(magnitudes * np.cumprod(advances, axis=0), size, num_samples)


def shift_pitch(audio: NDArray[Any], semitones: float, *, size: int = FRAME_SIZE) -> NDArray[Any]:
    """Return audio of the same length with a pitch that is higher by a number of semitones.

    :param audio: [time]
    :param size: samples of a frame, a multiple of 4
    """
    with optional_package("to change the pitch"):
        import soxr
    rate = 2.0 ** (-semitones / 12)
    return of_length(soxr.resample(stretch(audio, rate, size=size), 1 / rate, 1.0, quality="HQ"), len(audio))


def each_channel(audio: NDArray[Any], change: Callable[..., NDArray[Any]], *args: Any, **options: Any) -> NDArray[Any]:
    """Apply a function of audio [time] and further arguments to [time] or [time, channels]."""
    if audio.ndim == 1:
        return change(audio, *args, **options)
    return np.stack([change(channel, *args, **options) for channel in audio.T], axis=1)


def of_length(audio: NDArray[Any], num_samples: int) -> NDArray[Any]:
    """Cut audio [time, ...] at its end, or fill it up with zeros."""
    missing = max(0, num_samples - len(audio))
    return np.pad(audio, [(0, missing)] + [(0, 0)] * (audio.ndim - 1))[:num_samples]


def _transform(audio: NDArray[Any], size: int) -> NDArray[Any]:
    with optional_package("to stretch audio"):
        import scipy.fft
    padded = np.pad(audio, size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[:: size // _OVERLAP]
    result: NDArray[Any] = scipy.fft.rfft(frames * periodic_hann(size).astype(audio.dtype), axis=-1)
    return result


def _inverse(spectra: NDArray[Any], size: int, num_samples: int) -> NDArray[Any]:
    """Return the signal [num_samples] whose frames have these spectra, as the least squares fit of Griffin & Lim."""
    with optional_package("to stretch audio"):
        import scipy.fft
    frames = scipy.fft.irfft(spectra, size, axis=-1)
    window = periodic_hann(size).astype(frames.dtype)
    signal, weights = _overlapped(frames * window), _overlapped(np.broadcast_to(window**2, frames.shape))
    signal = np.divide(signal, weights, out=signal, where=weights > 1e-8)[size // 2 :]
    return of_length(signal, num_samples)


def _overlapped(frames: NDArray[Any]) -> NDArray[Any]:
    """Add frames [n, size], each a shift behind the one before."""
    count, size = frames.shape
    shift = size // _OVERLAP
    parts = frames.reshape(count, _OVERLAP, shift)
    total = np.zeros([count + _OVERLAP - 1, shift], frames.dtype)
    for nth in range(_OVERLAP):
        total[nth : nth + count] += parts[:, nth]
    return total.reshape(-1)
