"""Windows and filter banks for spectra, as numpy arrays: layers and the extraction of features share them."""

from __future__ import annotations

from typing import Any

import numpy
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
        return numpy.ones([size])
    if name == "blackman":
        return numpy.blackman(size)
    period = size - size % 2
    result: Floats = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(size) / period)
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
    squares = numpy.pad(forward**2, (0, overlaps * shift - size)).reshape(overlaps, shift).sum(axis=0)
    total = numpy.tile(squares, overlaps)[:size]
    result: Floats = numpy.divide(forward, total, out=numpy.zeros_like(total), where=total > 0)
    return result


def mel(frequency: Floats) -> Floats:
    """Return the pitch in mel of frequencies in Hz: ``1125 * ln(1 + f / 700)``."""
    result: Floats = 1125 * numpy.log1p(frequency / 700)
    return result


def frequency_of_mel(pitch: Floats) -> Floats:
    """Return the frequencies in Hz of pitches in mel, the inverse of `mel`."""
    result: Floats = 700 * numpy.expm1(pitch / 1125)
    return result


def mel_filterbank(sampling_rate: float, fft_size: int, num_filters: int) -> Floats:
    """Return triangular filters whose centres are equidistant on the mel scale from 0 to half the sampling rate.

    A filter rises from the centre of the previous one to 1 at its own, and falls to the centre of the next one.

    :param sampling_rate: in Hz
    :param fft_size: samples per Fourier transform
    :return: [fft_size // 2 + 1 bins, num_filters]
    """
    bounds = mel(numpy.array([0.0, sampling_rate / 2]))
    points = frequency_of_mel(numpy.linspace(bounds[0], bounds[1], num_filters + 2)) * fft_size / sampling_rate
    left, centre, right = points[:-2], points[1:-1], points[2:]
    bins = numpy.arange(fft_size // 2 + 1)[:, None]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    result: Floats = numpy.maximum(numpy.minimum(rising, falling), 0)
    return result
