"""Kinds of features, the value of the option ``features``: each with its own ``feature_options``."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileError
from returnn_tf.config.options import above, at_least, between, option
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.audio.spectra import (
    Framing,
    MelFilters,
    cosine_transform,
    hann_in_frame,
    kaldi_filters,
    kaldi_window,
    mel_spectrum,
    spectra,
)

#: Energies are in decibels above the loudest of the sequence minus this.
_RANGE_DB = 80.0
#: The log of the least energy of `KaldiFbank`: the distance of float32 between 1 and the next number.
LOG_FLOOR = float(np.log(np.finfo(np.float32).eps))


def decibels(power: NDArray[Any]) -> NDArray[Any]:
    """Return powers in decibels, at least 1e-10 and at least the maximum of the whole sequence minus 80 dB."""
    result: NDArray[Any] = 10 * np.log10(np.maximum(power, 1e-10))
    return np.maximum(result, result.max() - _RANGE_DB)


class Edges(enum.Enum):
    """What frames have of the time before the first sample and after the last one."""

    NONE = "nothing: only complete frames are cut"
    ZEROS = "half a frame of zeros"
    MIRRORED = "the audio mirrored"


@dataclasses.dataclass(frozen=True)
class FrameCuts:
    """How audio is cut to compute features.

    :param size: samples of which a frame of features is computed
    :param shift: samples between the beginnings of neighbouring frames
    """

    size: int
    shift: int
    edges: Edges


class Kind:
    """One kind of features; the fields of a subclass are its ``feature_options``."""

    #: Why a frame depends on all of the audio, so that features can't be computed while it comes; "" if it does not.
    needs_all: ClassVar[str] = ""

    #: The precision in which audio is prepared.
    dtype: ClassVar[str] = "float64"
    #: Features per frame where the option ``num_feature_filters`` is not given.
    default_filters: int = 40
    #: The one number that ``num_feature_filters`` may be.
    only_filters: Optional[int] = None

    def fault(self, num_filters: int) -> Optional[str]:
        """Return the fault of the options for this number of features, as far as it is known in advance; or None."""
        return None

    def check_frames(self, frames: Framing, num_filters: int) -> None:
        """Check what depends on the sample rate; ConfigError."""
        frames.check()

    def cuts(self, frames: Framing, num_filters: int) -> FrameCuts:
        """Return how `extract` cuts audio, unless `needs_all`."""
        return FrameCuts(frames.size, frames.shift, Edges.NONE)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute features.

        :param audio: [time], in the precision ``dtype``
        :param frames: how to cut it
        :param num_filters: features per frame
        :return: [frames, num_filters], in any precision
        """
        raise NotImplementedError("%s.extract" % type(self).__name__)


@dataclasses.dataclass
class _Band(Kind):
    fmin: float = option(0.0, check=at_least(0), help="in Hz, where the first band begins")
    fmax: Optional[float] = option(None, check=above(0), help="in Hz, where the last one ends; None: half the rate")
    center: bool = option(True, help="zeros before and after the audio, so that the first sample is in a middle")

    def fault(self, num_filters: int) -> Optional[str]:
        """Check that there is a band."""
        if self.fmax is not None and self.fmax <= self.fmin:
            return "fmax=%s must be above fmin=%s" % (self.fmax, self.fmin)
        return None

    def check_frames(self, frames: Framing, num_filters: int) -> None:
        """Check that the band begins below half the sample rate."""
        super().check_frames(frames, num_filters)
        if self.fmax is None and self.fmin >= frames.sample_rate / 2:
            raise FileError(
                "feature_options: fmin=%s is not below half the sample rate, %d Hz" % (self.fmin, frames.sample_rate)
            )

    def cuts(self, frames: Framing, num_filters: int) -> FrameCuts:
        """Return what `extract` cuts."""
        return FrameCuts(frames.size, frames.shift, Edges.ZEROS if self.center else Edges.NONE)

    def energies(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Return energies in mel bands, [frames, num_filters]."""
        self.check_frames(frames, num_filters)
        return mel_spectrum(audio, frames, num_filters, fmin=self.fmin, fmax=self.fmax, center=self.center)


@dataclasses.dataclass
class Mfcc(_Band):
    """Mel-frequency cepstral coefficients; the root mean square of the frame in the place of the first one.

    The Fourier transform has double precision, since bands 80 dB below the loudest one count as much.
    """

    needs_all = "energies are relative to the loudest one of the audio"
    n_mels: int = option(128, check=at_least(1), help="number of mel bands")

    def fault(self, num_filters: int) -> Optional[str]:
        """Check that the bands are no fewer than the coefficients."""
        if num_filters > self.n_mels:
            return "n_mels=%d bands give no %d coefficients (num_feature_filters)" % (self.n_mels, num_filters)
        return super().fault(num_filters)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute the coefficients."""
        levels = decibels(self.energies(audio, frames, self.n_mels))
        result: NDArray[Any] = levels.astype(np.float64) @ cosine_transform(self.n_mels, num_filters)
        cut = frames.cut(audio, center=self.center)
        result[:, 0] = np.sqrt(np.einsum("ti,ti->t", cut, cut) / frames.size)
        return result


@dataclasses.dataclass
class LogMel(Kind):
    """Natural logarithm of the energies in mel bands, at least ln(0.001).

    Single precision suffices for these levels.
    """

    dtype: ClassVar[str] = "float32"

    def cuts(self, frames: Framing, num_filters: int) -> FrameCuts:
        """Return what `extract` cuts."""
        return FrameCuts(frames.size, frames.shift, Edges.ZEROS)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute logarithms."""
        energies = mel_spectrum(audio, frames, num_filters, transform=self.dtype, dtype=self.dtype)
        np.maximum(energies, 1e-3, out=energies)
        result: NDArray[Any] = np.log(energies, out=energies)
        return result


@dataclasses.dataclass
class LogLogMel(LogMel):
    """The squares of `LogMel` in decibels."""

    needs_all = "they are relative to the loudest one of the audio"
    dtype: ClassVar[str] = "float64"  # the second logarithm magnifies errors where the first one is about 0

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute logarithms of logarithms."""
        return decibels(np.square(super().extract(audio, frames, num_filters)))


@dataclasses.dataclass
class DbMel(_Band):
    """``20 log10`` of the energies in mel bands; a Fourier transform in double precision, as quiet bands count."""

    min_amp: float = option(1e-10, check=above(0), help="least energy")

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute decibels."""
        result: NDArray[Any] = 20 * np.log10(np.maximum(self.energies(audio, frames, num_filters), self.min_amp))
        return result


@dataclasses.dataclass
class KaldiFbank(Kind):
    """Natural logarithm of the energies in mel bands by the formula of Kaldi's ``compute-fbank-feats``, without dither.

    Bands and edges are those of sherpa-onnx. Samples are from -1 to 1; those of Kaldi are 2**15 times as large. Each
    frame loses its mean, and then, for each sample, a share of the one before.
    """

    default_filters = 80

    fmin: float = option(20.0, check=at_least(0), help="in Hz, where the first band begins")
    fmax: float = option(-400.0, help="in Hz, where the last one ends; 0 or less: above half the rate")
    snip_edges: bool = option(
        False, help="only complete frames; else one for each step, of mirrored audio at the edges"
    )
    preemphasis: float = option(0.97, check=between(0, 1), help="share of the previous sample that is subtracted")

    def check_frames(self, frames: Framing, num_filters: int) -> None:
        """Check that the bands lie below half the sample rate, and that each has a bin."""
        super().check_frames(frames, num_filters)
        self._filters(frames, num_filters)

    def _filters(self, frames: Framing, num_filters: int) -> tuple[int, MelFilters]:
        """Return the size of the Fourier transform, a power of 2, and the filters."""
        half = frames.sample_rate / 2
        fmax = self.fmax if self.fmax > 0 else half + self.fmax
        if not self.fmin < fmax <= half:
            raise FileError(
                "feature_options: the bands from fmin=%s to fmax=%s Hz do not lie between 0 and half the sample "
                "rate, %g Hz" % (self.fmin, self.fmax, half)
            )
        fft_size = 1 << (frames.size - 1).bit_length()
        return fft_size, kaldi_filters(frames.sample_rate, fft_size, num_filters, self.fmin, fmax)

    def cuts(self, frames: Framing, num_filters: int) -> FrameCuts:
        """Return what `extract` cuts."""
        return FrameCuts(frames.size, frames.shift, Edges.NONE if self.snip_edges else Edges.MIRRORED)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute logarithms."""
        super().check_frames(frames, num_filters)
        fft_size, filters = self._filters(frames, num_filters)
        cut = frames.cut(audio, center=False) if self.snip_edges else frames.cut_mirrored(audio)
        result = np.empty((len(cut), num_filters))
        found = spectra(cut, kaldi_window(frames.size), fft_size=fft_size, prepare=self._prepared)
        for start, spectrum in found:
            filters.apply(spectrum, result[start : start + len(spectrum)])
        np.maximum(result, math.exp(LOG_FLOOR), out=result)
        return np.log(result, out=result)

    def _prepared(self, frames: NDArray[Any]) -> NDArray[Any]:
        centred = frames - frames.mean(axis=1, keepdims=True)
        before = np.concatenate([centred[:, :1], centred[:, :-1]], axis=1)
        result: NDArray[Any] = centred - self.preemphasis * before
        return result


@dataclasses.dataclass
class LinearSpectrogram(Kind):
    """Magnitudes of a Fourier transform of ``2 * num_feature_filters`` samples, without that of frequency 0."""

    center: bool = option(True, help="zeros before and after the audio, so that the first sample is in a middle")

    def fault(self, num_filters: int) -> Optional[str]:
        """Check that the number of bins is even."""
        return "num_feature_filters=%d must be even" % num_filters if num_filters % 2 else None

    def check_frames(self, frames: Framing, num_filters: int) -> None:
        """Check that a frame is not longer than what is transformed."""
        super().check_frames(frames, num_filters)
        size = 2 * num_filters
        if size < frames.size:
            raise FileError(
                "linear_spectrogram with num_feature_filters=%d transforms %d samples, but a frame has %d. "
                "Set num_feature_filters to %d or more, or a shorter window_len"
                % (num_filters, size, frames.size, -(-frames.size // 4) * 2)
            )

    def cuts(self, frames: Framing, num_filters: int) -> FrameCuts:
        """Return what `extract` cuts."""
        return FrameCuts(2 * num_filters, frames.shift, Edges.ZEROS if self.center else Edges.NONE)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Compute magnitudes."""
        self.check_frames(frames, num_filters)
        size = 2 * num_filters
        cut = frames.cut(audio, center=self.center, fft_size=size)
        result = np.empty((len(cut), num_filters), np.float32)
        for start, spectrum in spectra(cut, hann_in_frame(frames.size, size, "float64")):
            result[start : start + len(spectrum)] = np.abs(spectrum[:, 1:])
        return result


@dataclasses.dataclass
class Pitch(Kind):
    """The fundamental frequency in Hz, 0 without voice, by the package pyworld (DIO and StoneMask)."""

    needs_all = "the pitch is tracked over all of the audio"
    default_filters = 1
    only_filters = 1

    fmin: float = option(71.0, check=above(0), help="in Hz, the lowest pitch")
    fmax: float = option(800.0, check=above(0), help="in Hz, the highest pitch")

    def fault(self, num_filters: int) -> Optional[str]:
        """Check the range."""
        return None if self.fmin < self.fmax else "fmax=%s must be above fmin=%s" % (self.fmax, self.fmin)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Estimate and refine the pitch."""
        with optional_package("for features 'f0'", package="pyworld"):
            import pyworld
        self.check_frames(frames, num_filters)
        period = 1000 * frames.shift / frames.sample_rate
        rough, times = pyworld.dio(
            audio, frames.sample_rate, f0_floor=self.fmin, f0_ceil=self.fmax, frame_period=period
        )
        pitch: NDArray[Any] = pyworld.stonemask(audio, rough, times, frames.sample_rate)
        return pitch[:, None]


@dataclasses.dataclass
class Raw(Kind):
    """The samples themselves, as features of dim 1: [time, 1] or [time, channels, 1]."""

    dtype: ClassVar[str] = "float32"
    default_filters = 1
    only_filters = 1

    def check_frames(self, frames: Framing, num_filters: int) -> None:
        """Check nothing: there are no frames."""

    def cuts(self, frames: Framing, num_filters: int) -> FrameCuts:
        """Return what `extract` cuts."""
        return FrameCuts(1, 1, Edges.NONE)

    def extract(self, audio: NDArray[Any], frames: Framing, num_filters: int) -> NDArray[Any]:
        """Append an axis."""
        return audio[..., None]


#: Kinds by name; besides there are functions of users.
KINDS: dict[str, type[Kind]] = {
    "mfcc": Mfcc,
    "log_mel_filterbank": LogMel,
    "log_log_mel_filterbank": LogLogMel,
    "db_mel_filterbank": DbMel,
    "kaldi_fbank": KaldiFbank,
    "linear_spectrogram": LinearSpectrogram,
    "raw": Raw,
    "f0": Pitch,
}
