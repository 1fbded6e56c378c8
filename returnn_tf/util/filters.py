"""Windows and filter banks for spectra, as numpy arrays: layers and the extraction of features share them."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

#: The names of `window`.
WINDOWS = ("hanning", "blackman", "ones")


def window(name: str, size: int) -> Floats:
    """Return a window function.

    :param name: one of `WINDOWS`. "hanning" has the period ``size`` if that is even, ``size - 1`` if it is odd, as in
        ``tf.signal.hann_window``; "blackman" is symmetric
    :param size: number of samples
    :return: [size], from 0 to 1
    """
    if name == "ones" or size == 1:
        return np.ones([size])
    if name == "blackman":
        return np.blackman(size)
    period = size - size % 2
    result: Floats = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / period)
    return result


def periodic_hann(size: int) -> Floats:
    """Return a Hann window [size] with the period ``size``, from 0 to 1; other than `window`, also if that is odd."""
    result: Floats = 0.5 - 0.5 * np.cos(2 * np.pi / size * np.arange(size))
    return result


def povey_window(size: int) -> Floats:
    """Return the window [size] of Kaldi: a symmetric Hann window to the power of 0.85."""
    result: Floats = np.hanning(size) ** 0.85
    return result


def inverse_window(forward: Floats, shift: int) -> Floats:
    """Return the window by which overlapping frames give the signal back that was cut into frames by ``forward``.

    Each sample of it is divided by the sum of the squares of all windows over the same sample (Griffin & Lim 1984); it
    is 0 where all of these are 0.

    :param forward: [size]
    :param shift: distance of neighbouring frames in samples
    """
    size = len(forward)
    overlaps = -(-size // shift)
    squares = np.pad(forward**2, (0, overlaps * shift - size)).reshape(overlaps, shift).sum(axis=0)
    total = np.tile(squares, overlaps)[:size]
    result: Floats = np.divide(forward, total, out=np.zeros_like(total), where=total > 0)
    return result


def mel(frequency: Floats) -> Floats:
    """Return the pitch in mel of frequencies in Hz: ``1125 * ln(1 + f / 700)``."""
    result: Floats = 1125 * np.log1p(frequency / 700)
    return result


def frequency_of_mel(pitch: Floats) -> Floats:
    """Return the frequencies in Hz of pitches in mel, the inverse of `mel`."""
    result: Floats = 700 * np.expm1(pitch / 1125)
    return result


def triangles(edges: Floats, at: Floats) -> Floats:
    """Return triangular filters: each rises from 0 at an edge to 1 at the next one, and falls to 0 at the one after it.

    :param edges: [num_filters + 2], increasing
    :param at: [points] where the filters are evaluated, in the unit of the edges
    :return: [points, num_filters]
    """
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (at[:, None] - left) / (centre - left), (right - at[:, None]) / (right - centre)
    result: Floats = np.maximum(np.minimum(rising, falling), 0)
    return result


def mel_filterbank(
    sampling_rate: float, fft_size: int, num_filters: int, *, fmin: float = 0.0, fmax: Optional[float] = None
) -> Floats:
    """Return triangular filters whose centres are equidistant in `mel` between two frequencies.

    A filter rises from the centre of the previous one to 1 at its own, and falls to the centre of the next one.

    :param sampling_rate: in Hz
    :param fft_size: samples per Fourier transform
    :param fmin: in Hz, where the first filter begins
    :param fmax: in Hz, where the last filter ends; default: half the sampling rate
    :return: [fft_size // 2 + 1 bins, num_filters]
    """
    bounds = mel(np.array([fmin, sampling_rate / 2 if fmax is None else fmax]))
    edges = frequency_of_mel(np.linspace(bounds[0], bounds[1], num_filters + 2))
    return triangles(edges, fft_frequencies(sampling_rate, fft_size))


def kaldi_filterbank(sampling_rate: float, fft_size: int, num_filters: int, *, fmin: float, fmax: float) -> Floats:
    """Return filters that are triangles over the pitch in mel, not over the frequency as those of `mel_filterbank`.

    :param sampling_rate: in Hz
    :param fft_size: samples per Fourier transform
    :param fmin: in Hz, where the first filter begins
    :param fmax: in Hz, where the last filter ends
    :return: [fft_size // 2 + 1 bins, num_filters]
    """
    low, high = mel(np.array([fmin, fmax]))
    return triangles(np.linspace(low, high, num_filters + 2), mel(fft_frequencies(sampling_rate, fft_size)))


def fft_frequencies(sampling_rate: float, fft_size: int) -> Floats:
    """Return the frequencies in Hz of the bins of a Fourier transform of real samples: [fft_size // 2 + 1]."""
    result: Floats = np.arange(fft_size // 2 + 1) * (sampling_rate / fft_size)
    return result


#: The scale of Slaney's Auditory Toolbox: linear below this frequency in Hz, logarithmic above.
_SLANEY_BREAK = 1000.0
_SLANEY_HZ_PER_MEL = 200 / 3
_SLANEY_LOG_STEP = math.log(6.4) / 27
_SLANEY_BREAK_MEL = _SLANEY_BREAK / _SLANEY_HZ_PER_MEL


def slaney_mel(frequency: Floats) -> Floats:
    """Return the pitch of frequencies in Hz: ``f * 3 / 200``, but ``15 + 27 ln(f / 1000) / ln(6.4)`` above 1000 Hz."""
    above = np.maximum(frequency, _SLANEY_BREAK)
    result: Floats = np.where(
        frequency < _SLANEY_BREAK,
        frequency / _SLANEY_HZ_PER_MEL,
        _SLANEY_BREAK_MEL + np.log(above / _SLANEY_BREAK) / _SLANEY_LOG_STEP,
    )
    return result


def frequency_of_slaney_mel(pitch: Floats) -> Floats:
    """Return the frequencies in Hz of pitches, the inverse of `slaney_mel`."""
    result: Floats = np.where(
        pitch < _SLANEY_BREAK_MEL,
        pitch * _SLANEY_HZ_PER_MEL,
        _SLANEY_BREAK * np.exp(_SLANEY_LOG_STEP * (pitch - _SLANEY_BREAK_MEL)),
    )
    return result


def slaney_filterbank(
    sampling_rate: float, fft_size: int, num_filters: int, *, fmin: float = 0.0, fmax: Optional[float] = None
) -> Floats:
    """Return triangular filters of area 1 (in Hz) whose edges are equidistant in `slaney_mel`.

    :param sampling_rate: in Hz
    :param fft_size: samples per Fourier transform
    :param fmin: in Hz, where the first filter begins
    :param fmax: in Hz, where the last filter ends; default: half the sampling rate
    :return: [fft_size // 2 + 1 bins, num_filters]
    """
    bounds = slaney_mel(np.array([fmin, sampling_rate / 2 if fmax is None else fmax]))
    edges = frequency_of_slaney_mel(np.linspace(bounds[0], bounds[1], num_filters + 2))
    result: Floats = triangles(edges, fft_frequencies(sampling_rate, fft_size)) * (2 / (edges[2:] - edges[:-2]))
    return result


def orthonormal_dct(size: int, num_coefficients: int) -> Floats:
    """Return the first columns of the orthonormal discrete cosine transform of type 2: [size, num_coefficients]."""
    angles = np.pi / size * (np.arange(size)[:, None] + 0.5) * np.arange(num_coefficients)
    result: Floats = np.cos(angles) * np.sqrt(2 / size)
    result[:, 0] = np.sqrt(1 / size)
    return result
