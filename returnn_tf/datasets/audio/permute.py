"""Random changes of audio: loudness, zoom (speed and pitch), stretching (speed), pitch; by a phase vocoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileError
from returnn_tf.config.options import above, between, from_options, option
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


#: The changes that are drawn in this order, each with the options rnd_NAME_switch, rnd_NAME_lower, ...
_SWITCHED = ("zoom", "stretch", "pitch")


def _switch_help(what: str) -> str:
    return "probability of %s; at most 0 is never, 1 or more always" % what


@dataclasses.dataclass
class RandomPermute:
    """The option ``random_permute``; ``True`` stands for all defaults."""

    rnd_scale_lower: float = option(0.8, help="the least factor of the amplitude")
    rnd_scale_upper: float = option(1.0, help="the largest factor of the amplitude")
    rnd_zoom_switch: float = option(0.2, help=_switch_help("zooming, which changes speed and pitch"))
    rnd_zoom_lower: float = option(0.9, check=above(0), help="the least factor of the duration")
    rnd_zoom_upper: float = option(1.1, check=above(0), help="the largest factor of the duration")
    rnd_zoom_order: int = option(3, check=between(0, 5), help="degree of the splines for zooming")
    rnd_stretch_switch: float = option(0.2, help=_switch_help("stretching, which changes the speed alone"))
    rnd_stretch_lower: float = option(0.9, check=above(0), help="the least factor of the speed")
    rnd_stretch_upper: float = option(1.2, check=above(0), help="the largest factor of the speed")
    rnd_pitch_switch: float = option(0.2, help=_switch_help("changing the pitch alone"))
    rnd_pitch_lower: float = option(-1.0, help="the least change in semitones")
    rnd_pitch_upper: float = option(1.0, help="the largest change in semitones")

    @classmethod
    def parse(cls, value: Any, *, where: str) -> Optional[RandomPermute]:
        """Return the options, or None where nothing is to be changed (False, None, ``{}``).

        :param where: prefix of errors
        :raises ConfigError: unknown options, limits the wrong way round, or an option of what is switched off
        """
        where = "%s: random_permute" % where
        if not value:
            return None
        if value is True or value == 1:
            return cls()
        if not isinstance(value, Mapping):
            raise FileError("%s must be True, False or a dict of options, got %r" % (where, value))
        options = from_options(cls, value, where=where)
        for name in ("scale", *_SWITCHED):
            options._check_change(name, value, where)
        return options

    def _check_change(self, name: str, given: Mapping[str, Any], where: str) -> None:
        lower, upper = self._limits(name)
        if lower > upper:
            raise FileError("%s: rnd_%s_lower=%s is above rnd_%s_upper=%s" % (where, name, lower, name, upper))
        switch = "rnd_%s_switch" % name
        if name == "scale" or getattr(self, switch) > 0:
            return
        unused = [key for key in given if key.startswith("rnd_%s_" % name) and key != switch]
        if unused:
            raise FileError(
                "%s: %s has no effect, since %s is %s. Remove it, or set %s above 0"
                % (where, ", ".join(unused), switch, getattr(self, switch), switch)
            )

    def _limits(self, name: str) -> tuple[float, float]:
        return getattr(self, "rnd_%s_lower" % name), getattr(self, "rnd_%s_upper" % name)

    def apply(self, audio: NDArray[Any], rng: np.random.RandomState) -> NDArray[Any]:
        """Return audio changed at random.

        A number is drawn for the amplitude, then for each switch one, followed by that of the change if it takes place.

        :param audio: [time] or [time, channels]
        :param rng: draws as many numbers as there are changes
        """
        audio = audio * rng.uniform(*self._limits("scale"))
        changes: dict[str, Callable[[NDArray[Any], float], NDArray[Any]]] = {
            "zoom": self._zoom,
            "stretch": stretch,
            "pitch": shift_pitch,
        }
        for name in _SWITCHED:
            if rng.uniform(0.0, 1.0) < getattr(self, "rnd_%s_switch" % name):
                amount = rng.uniform(*self._limits(name))
                audio = _each_channel(audio, changes[name], amount)
        return audio

    def _zoom(self, audio: NDArray[Any], factor: float) -> NDArray[Any]:
        with optional_package("for random_permute"):
            import scipy.ndimage
        result: NDArray[Any] = scipy.ndimage.zoom(audio, factor, order=self.rnd_zoom_order)
        return result


def _each_channel(
    audio: NDArray[Any], change: Callable[[NDArray[Any], float], NDArray[Any]], amount: float
) -> NDArray[Any]:
    if audio.ndim == 1:
        return change(audio, amount)
    return np.stack([change(channel, amount) for channel in audio.T], axis=1)
