"""Frames of audio, their spectra and mel spectra."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.util.filters import (
    kaldi_filterbank,
    orthonormal_dct,
    periodic_hann,
    povey_window,
    slaney_filterbank,
)

#: Frames that are transformed at once: what they need stays in the caches of a core.
_BLOCK = 240
#: Products have rows in multiples of this, the tiles of BLAS libraries, which sum up incomplete tiles in another order:
#: so the energies of a frame depend on nothing else, and are the same when audio comes block by block.
_ROWS = 48
#: Filters whose bins become one matrix.
_FILTERS_OF_BLOCK = 8


@dataclasses.dataclass(frozen=True)
class Framing:
    """How audio is cut into frames.

    :param sample_rate: in Hz
    :param size: samples in a frame
    :param shift: samples between the beginnings of neighbouring frames
    :param within: whether the audio has its edges already (`Edges.before`), so that only complete frames of it are cut
    """

    sample_rate: int
    size: int
    shift: int
    within: bool = False

    @classmethod
    def make(cls, sample_rate: int, window_len: float, step_len: float) -> Framing:
        """Return frames of given length and distance in seconds, rounded down to samples."""
        return cls(sample_rate, int(window_len * sample_rate), int(step_len * sample_rate))

    def check(self) -> None:
        """Check that a frame and a step have at least one sample; else ConfigError."""
        if self.size < 1 or self.shift < 1:
            raise FileError(
                "window_len and step_len give frames of %d samples, every %d samples, at %d Hz. Are they in "
                "seconds?" % (self.size, self.shift, self.sample_rate)
            )

    def cut(self, audio: NDArray[Any], *, center: bool, fft_size: int = 0, dtype: Any = np.float64) -> NDArray[Any]:
        """Return all frames as a view [frames, fft_size].

        :param audio: [time]
        :param center: the first frame has the first sample in its middle, zeros before it, and likewise at the end;
            else only complete frames
        :param fft_size: samples in a frame that differs from ``size``
        :param dtype: of the frames
        :raises DataError: shorter than a frame
        """
        self.check()
        size = fft_size or self.size
        if center and not self.within:
            padded = np.zeros(len(audio) + 2 * (size // 2), dtype)
            padded[size // 2 : size // 2 + len(audio)] = audio
            audio = padded
        if len(audio) < size:
            raise FileDataError(
                "the audio has %d samples, fewer than a frame of %d. Leave it out, or set in feature_options "
                "center, or of kaldi_fbank snip_edges=False" % (len(audio), size)
            )
        return np.lib.stride_tricks.sliding_window_view(audio.astype(dtype, copy=False), size)[:: self.shift]

    @property
    def mirrored_first(self) -> int:
        """Return the sample at which the first frame of `cut_mirrored` begins; negative: before the audio."""
        return self.shift // 2 - self.size // 2

    def mirrored_count(self, samples: int) -> int:
        """Return the number of frames of `cut_mirrored`."""
        return (samples + self.shift // 2) // self.shift

    def cut_mirrored(self, audio: NDArray[Any]) -> NDArray[Any]:
        """Return frames as a view [frames, size] whose middles are those of the steps, one for each step.

        The audio is mirrored before its begin and behind its end; a step that is left is one from its half on.

        :param audio: [time]
        :raises DataError: shorter than half a step
        """
        if self.within:
            return self.cut(audio, center=False, dtype=audio.dtype)
        self.check()
        count = self.mirrored_count(len(audio))
        if not count:
            raise FileDataError(
                "the audio has %d samples, fewer than half a step of %d. Leave it out" % (len(audio), self.shift)
            )
        first = self.mirrored_first
        before, skipped = max(0, -first), max(0, first)
        after = max(0, (count - 1) * self.shift + first + self.size - len(audio))
        mirrored = np.pad(audio, (before, after), mode="symmetric")[skipped:]
        return np.lib.stride_tricks.sliding_window_view(mirrored, self.size)[:: self.shift][:count]


@functools.lru_cache(maxsize=32)
def hann_in_frame(size: int, fft_size: int, dtype: str) -> NDArray[Any]:
    """Return a Hann window of ``size`` samples in the middle of ``fft_size`` ones."""
    before = (fft_size - size) // 2
    return np.pad(periodic_hann(size), (before, fft_size - size - before)).astype(dtype)


def spectra(
    frames: NDArray[Any],
    window: NDArray[Any],
    *,
    fft_size: Optional[int] = None,
    prepare: Optional[Callable[[NDArray[Any]], NDArray[Any]]] = None,
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield complex spectra of frames by blocks: (index of the first frame, [frames, bins]).

    They have single precision if the frames have.

    :param frames: [frames, size]
    :param window: [size]
    :param fft_size: samples per Fourier transform, with zeros behind the frame; default: those of a frame
    :param prepare: changes frames before the window is applied; must not write into what it gets
    """
    with optional_package("for features of audio"):
        import scipy.fft
    for start in range(0, len(frames), _BLOCK):
        block = frames[start : start + _BLOCK]
        if prepare is not None:
            block = prepare(block)
        yield start, scipy.fft.rfft(block * window, n=fft_size, axis=-1, overwrite_x=True)


class MelFilters:
    """A mel filter bank as a sparse matrix: neighbouring filters, with the bins that they need, are dense blocks.

    :param filters: [bins, num_filters], in which the bins of a filter are neighbours, and higher than those before
    """

    def __init__(self, filters: NDArray[Any]):
        self._num_filters = filters.shape[1]
        self._blocks = []
        for start in range(0, self._num_filters, _FILTERS_OF_BLOCK):
            columns = slice(start, start + _FILTERS_OF_BLOCK)
            bins = np.flatnonzero(filters[:, columns].any(axis=1))
            rows = slice(bins[0], bins[-1] + 1) if len(bins) else slice(0, 0)
            self._blocks.append((rows, columns, np.ascontiguousarray(filters[rows, columns])))

    def apply(self, spectrum: NDArray[Any], result: NDArray[Any]) -> None:
        """Compute energies.

        :param spectrum: [frames, bins], complex
        :param result: [frames, num_filters], where they go
        """
        # the magnitude is computed faster than the sum of two squares with steps between them
        count, bins = spectrum.shape
        power = np.zeros((-(-count // _ROWS) * _ROWS, bins), result.dtype)
        power[:count] = np.abs(spectrum)
        np.square(power, out=power)
        for rows, columns, weights in self._blocks:
            result[:, columns] = np.matmul(power[:, rows], weights)[:count]


@functools.lru_cache(maxsize=32)
def mel_filters(
    sample_rate: int, fft_size: int, num_filters: int, fmin: float, fmax: Optional[float], dtype: str
) -> MelFilters:
    """Return a mel filter bank for computation in a type."""
    return MelFilters(slaney_filterbank(sample_rate, fft_size, num_filters, fmin=fmin, fmax=fmax).astype(dtype))


@functools.lru_cache(maxsize=32)
def kaldi_filters(sample_rate: int, fft_size: int, num_filters: int, fmin: float, fmax: float) -> MelFilters:
    """Return Kaldi's mel filter bank.

    :raises ConfigError: a filter lies between two bins
    """
    filters = kaldi_filterbank(sample_rate, fft_size, num_filters, fmin=fmin, fmax=fmax)
    empty = np.flatnonzero(~filters.any(axis=0))
    if len(empty):
        raise FileError(
            "num_feature_filters=%d: filter %d lies between two bins of the Fourier transform of %d samples at %d Hz. "
            "Set fewer filters, or a longer window_len" % (num_filters, empty[0], fft_size, sample_rate)
        )
    return MelFilters(filters)


@functools.lru_cache(maxsize=32)
def kaldi_window(size: int) -> NDArray[Any]:
    """Return `povey_window`, cached."""
    return povey_window(size)


def mel_spectrum(
    audio: NDArray[Any],
    frames: Framing,
    num_filters: int,
    *,
    fmin: float = 0.0,
    fmax: Optional[float] = None,
    center: bool = True,
    transform: str = "float64",
    dtype: str = "float32",
) -> NDArray[Any]:
    """Return the energy in bands of frequency: [frames, num_filters].

    :param audio: [time]
    :param frames: how to cut it
    :param num_filters: number of bands
    :param fmin: in Hz, where the first band begins
    :param fmax: in Hz, where the last band ends; default: half the sample rate
    :param center: see `Framing.cut`
    :param transform: precision of the Fourier transform, whose errors are relative to the loudest part of a frame
    :param dtype: precision of the energies, whose errors are relative to each
    """
    window = hann_in_frame(frames.size, frames.size, transform)
    filters = mel_filters(frames.sample_rate, frames.size, num_filters, fmin, fmax, dtype)
    cut = frames.cut(audio, center=center, dtype=transform)
    result = np.empty((len(cut), num_filters), dtype)
    for start, spectrum in spectra(cut, window):
        filters.apply(spectrum, result[start : start + len(spectrum)])
    return result


@functools.lru_cache(maxsize=32)
def cosine_transform(size: int, num_coefficients: int) -> NDArray[Any]:
    """Return `orthonormal_dct`, cached."""
    return orthonormal_dct(size, num_coefficients)
