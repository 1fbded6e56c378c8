"""The option ``augment``: recordings as other speakers, rooms, noises and telephones would have made them."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, ClassVar, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError, FileError, did_you_mean, shown
from returnn_tf.config.options import from_options, option, probability
from returnn_tf.datasets.audio.audio_range import duration, read_range
from returnn_tf.datasets.audio.decode import read_audio
from returnn_tf.datasets.audio.encode import encoded
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.audio.stretch import each_channel, of_length, shift_pitch, stretch
from returnn_tf.datasets.core.safe_files import wanted_by

#: How a number is drawn: always this one; uniformly from [least, largest]; or each key by its weight.
Amount = Union[float, list[float], Mapping[float, float]]
Paths = Union[str, list[str]]

#: Files in a folder with other suffixes are no audio.
_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".sph")
#: Milliseconds of a frame of the phase vocoder, rounded to a power of two: some periods of a voice.
_FRAME_MS = 64
#: Impulse responses that are kept in memory.
_RESPONSES = 256


def check_amount(least: float, most: float) -> Callable[[Any], Optional[str]]:
    """Return a check of an `Amount` whose numbers are within limits."""

    def check(value: Any) -> Optional[str]:
        if isinstance(value, (list, tuple)) and (len(value) != 2 or value[0] > value[1]):
            return "must be a number, [least, largest], or a dict from numbers to weights"
        if isinstance(value, Mapping) and not _are_weights(value):
            return "must have weights of at least 0 by number, one of them above 0"
        numbers = list(value) if isinstance(value, (list, tuple, Mapping)) else [value]
        wrong = [number for number in numbers if not least <= number <= most]
        return "must be from %g to %g" % (least, most) if wrong else None

    return check


def _are_weights(value: Mapping[Any, float]) -> bool:
    weights = list(value.values())
    return bool(weights) and all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0


def draw(amount: Amount, rng: np.random.RandomState) -> float:
    """Return a number drawn as an `Amount` says."""
    if isinstance(amount, Mapping):
        return float(_chosen(amount, rng))
    return amount if isinstance(amount, (int, float)) else float(rng.uniform(amount[0], amount[1]))


def _chosen(weights: Mapping[Any, float], rng: np.random.RandomState) -> Any:
    """Return a key, drawn by its weight."""
    sums = list(itertools.accumulate(weights.values()))
    return list(weights)[bisect.bisect_right(sums, rng.uniform(0, sums[-1]), hi=len(sums) - 1)]


@dataclasses.dataclass
class AudioStep:
    """One change of audio; the fields of a subclass are its options."""

    #: Whether audio has another length afterwards.
    changes_length: ClassVar[bool] = False
    #: Whether nothing but the level is another one, which ``peak_normalization`` undoes.
    changes_level_only: ClassVar[bool] = False
    #: Whether the result depends on the level.
    depends_on_level: ClassVar[bool] = False

    probability: float = option(1.0, check=probability, help="how often the change is made")

    def set_up(self) -> None:
        """Find the files."""

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return changed audio.

        :param audio: [time] or [time, channels], float32, at least one sample
        :param rate: in Hz
        :param rng: what is random is drawn from it
        :raises DataError: a file can't be read
        """
        raise NotImplementedError("%s.apply" % type(self).__name__)


@dataclasses.dataclass
class Speed(AudioStep):
    """Faster or slower, with another pitch, as a tape that is played so (Ko et al. 2015): by resampling."""

    changes_length = True

    factor: Amount = option(
        {0.9: 1, 1.0: 1, 1.1: 1},
        check=check_amount(0.25, 4),
        help="how many times as fast: the length is divided by it",
    )

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return ``round(time / factor)`` samples, at least one."""
        factor = draw(self.factor, rng)
        return audio if factor == 1 else _resampled(audio, factor, 1.0, max(1, round(len(audio) / factor)))


@dataclasses.dataclass
class Tempo(AudioStep):
    """Faster or slower with the same pitch, by a phase vocoder (Flanagan & Golden 1966)."""

    changes_length = True

    factor: Amount = option(
        [0.9, 1.1], check=check_amount(0.25, 4), help="how many times as fast: the length is divided by it"
    )

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return ``round(time / factor)`` samples, at least one."""
        factor = draw(self.factor, rng)
        if factor == 1:
            return audio
        return of_length(
            each_channel(audio, stretch, factor, size=_frame_size(rate)), max(1, round(len(audio) / factor))
        )


@dataclasses.dataclass
class PitchShift(AudioStep):
    """Another pitch with the same length."""

    semitones: Amount = option([-2.0, 2.0], check=check_amount(-24, 24), help="by how many the pitch is higher")

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return as many samples."""
        semitones = draw(self.semitones, rng)
        return each_channel(audio, shift_pitch, semitones, size=_frame_size(rate)) if semitones else audio


@dataclasses.dataclass
class Volume(AudioStep):
    """Louder or quieter."""

    changes_level_only = True

    decibels: Amount = option([-10.0, 10.0], check=check_amount(-100, 100), help="by how many the audio is louder")

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return the audio times a factor; it may go beyond -1 to 1."""
        return audio * np.float32(10 ** (draw(self.decibels, rng) / 20))


@dataclasses.dataclass
class Noise(AudioStep):
    """Noise from files is added: a random part of one of them, which is repeated if it is too short.

    The ratio is that of the mean powers of sequence and noise. Silence on one of the two sides has no such ratio:
    nothing is added then.
    """

    files: Paths = option(help="a file or folder with noises, or a list of these")
    snr: Amount = option([5.0, 20.0], check=check_amount(-50, 100), help="signal-to-noise ratio in decibels")

    def set_up(self) -> None:
        """Find the files."""
        self._found = audio_files(self.files)

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return the sum of audio and noise."""
        path = self._found[rng.randint(len(self._found))]
        noise = _noise(path, len(audio), rate, rng.uniform())
        power, of_noise = _power(audio), _power(noise)
        ratio = 10 ** (draw(self.snr, rng) / 10)
        if not power or not of_noise:
            return audio
        noise *= np.float32(math.sqrt(power / of_noise / ratio))
        result: NDArray[Any] = audio + (noise if audio.ndim == 1 else noise[:, None])
        return result


@dataclasses.dataclass
class Reverberation(AudioStep):
    """The sound of a room: the convolution with an impulse response from a file, of the same length and mean power.

    The largest sample of the response is taken as the direct sound, so that the audio is not delayed. Of a response
    with several channels one is drawn.
    """

    files: Paths = option(help="a file or folder with impulse responses, or a list of these")

    def set_up(self) -> None:
        """Find the files."""
        self._found = audio_files(self.files)

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return as many samples."""
        with optional_package("for reverberation"):
            import scipy.signal
        response = _response(self._found[rng.randint(len(self._found))], rate)
        column = response[:, rng.randint(response.shape[1])]
        direct = int(np.argmax(np.abs(column)))
        kernel = column if audio.ndim == 1 else column[:, None]
        result = scipy.signal.oaconvolve(audio, kernel, axes=0)[direct : direct + len(audio)]
        power, of_result = _power(audio), _power(result)
        return result * np.float32(math.sqrt(power / of_result)) if of_result else audio


@dataclasses.dataclass(frozen=True)
class _Coder:
    """A codec of libsndfile.

    :param rate: in Hz, at which it codes; None: that of the audio
    :param has_quality: whether it has a quality from 0 to 1
    """

    container: str
    name: str
    rate: Optional[int] = None
    has_quality: bool = False


#: Codecs by name; those of telephones code 8000 samples per second.
CODECS = {
    "mu-law": _Coder("WAV", "ULAW", 8000),
    "a-law": _Coder("WAV", "ALAW", 8000),
    "gsm": _Coder("WAV", "GSM610", 8000),
    "vorbis": _Coder("OGG", "VORBIS", has_quality=True),
    "opus": _Coder("OGG", "OPUS", has_quality=True),
    "mp3": _Coder("MP3", "MPEG_LAYER_III", has_quality=True),
}


def _check_codecs(value: Any) -> Optional[str]:
    unknown = [name for name in value if name not in CODECS]
    if unknown:
        return "has no codec %s: %s" % (shown(unknown[0]), did_you_mean(unknown[0], CODECS, in_order=True))
    if not value or (isinstance(value, Mapping) and not _are_weights(value)):
        return "must name codecs, in a dict with weights of at least 0"
    return None


@dataclasses.dataclass
class Codec(AudioStep):
    """The losses of a codec: the audio is encoded and decoded again; what is beyond -1 to 1 is clipped."""

    depends_on_level = True

    codecs: Union[list[str], dict[str, float]] = option(
        ["mu-law", "gsm"],
        check=_check_codecs,
        help="one of these is drawn: %s; or a dict with weights" % ", ".join(CODECS),
    )
    quality: Amount = option(
        [0.0, 0.5], check=check_amount(0, 1), help="of vorbis, opus and mp3, from the lowest, 0, to 1"
    )

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return as many samples."""
        weights = self.codecs if isinstance(self.codecs, Mapping) else dict.fromkeys(self.codecs, 1.0)
        name = _chosen(weights, rng)
        quality = draw(self.quality, rng)
        return each_channel(audio, self._coded, name, rate, quality)

    @staticmethod
    def _coded(audio: NDArray[Any], name: str, rate: int, quality: float) -> NDArray[Any]:
        coder = CODECS[name]
        own = coder.rate or rate
        sent = audio if own == rate else _resampled(audio, rate, own, max(1, round(len(audio) * own / rate)))
        try:
            content = encoded(sent, own, coder.container, coder.name, quality=quality if coder.has_quality else None)
        except DataError as exc:
            raise FileDataError("codec %r: %s" % (name, exc)) from exc
        received = of_length(read_audio(content)[0], len(sent))
        return received if own == rate else _resampled(received, own, rate, len(audio))


#: The kinds of steps by the name in a config.
STEPS: Mapping[str, type[AudioStep]] = {
    "speed": Speed,
    "tempo": Tempo,
    "pitch": PitchShift,
    "volume": Volume,
    "noise": Noise,
    "reverberation": Reverberation,
    "codec": Codec,
}


class Augmentation:
    """The changes that ``augment`` lists, made one after the other.

    >>> changes = Augmentation.parse([{"class": "speed", "factor": 2.0}], where="audio")
    >>> changes.apply(np.zeros(1000), 8000, np.random.RandomState(1)).shape
    (500,)
    """

    def __init__(self, steps: Sequence[AudioStep]) -> None:
        self._steps = tuple(steps)

    @classmethod
    def parse(cls, given: Any, *, where: str) -> Augmentation:
        """Check the list of steps, each a dict with "class" and options, and find their files.

        :param where: prefix of errors
        :raises ConfigError: there is no such step or option, or a file or folder is missing
        """
        where = "%s: augment" % where
        steps = []
        for number, each in enumerate(given, 1):
            name = each.get("class") if isinstance(each, Mapping) else None
            if not isinstance(name, str) or name not in STEPS:
                hint = did_you_mean(name, STEPS, in_order=True) if isinstance(name, str) else "E.g. {'class': 'speed'}."
                raise FileError("%s, step %d: %s is no step. %s" % (where, number, shown(each), hint))
            place = "%s, step %d (%s)" % (where, number, name)
            options = {key: value for key, value in each.items() if key != "class"}
            step = from_options(STEPS[name], options, where=place)
            with wanted_by(place):
                step.set_up()
            steps.append(step)
        return cls(steps)

    @property
    def idle_volume(self) -> Optional[int]:
        """Return the number, from 1, of a step whose effect a normalisation of the level undoes; None: none."""
        for number, step in enumerate(self._steps):
            if step.changes_level_only and not any(later.depends_on_level for later in self._steps[number:]):
                return number + 1
        return None

    def apply(self, audio: NDArray[Any], rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return changed audio, float32.

        :param audio: [time] or [time, channels], floats
        :param rate: in Hz
        :param rng: for each step a number is drawn that says whether it is made, then those that it needs
        :raises DataError: a file of a step can't be read; names it
        """
        audio = audio.astype(np.float32, copy=False)
        for step in self._steps:
            if rng.uniform() < step.probability:
                audio = step.apply(audio, rate, rng)
        return audio.astype(np.float32, copy=False)


def changes_length(steps: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the steps of a checked option ``augment`` give sequences other lengths than their files have."""
    return any(STEPS[step["class"]].changes_length and step.get("probability", 1) > 0 for step in steps)


def audio_files(given: Paths) -> list[str]:
    """Return the paths of audio files in the order of their names in each folder, which does not depend on the disk.

    :param given: a file or folder, with the folders in it, or a list of these
    :raises ConfigError: one is missing, or a folder has no audio files
    """
    found: list[str] = []
    for path in [given] if isinstance(given, str) else given:
        there = list(_in_folder(path)) if os.path.isdir(path) else [path] * os.path.exists(path)
        if not there:
            what = "has no audio files" if os.path.isdir(path) else "does not exist"
            raise FileError("files: %r %s (current directory: %s)" % (path, what, os.getcwd()))
        found += there
    if not found:
        raise FileError("files: the list is empty")
    return found


def _in_folder(folder: str) -> Iterator[str]:
    for path, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        yield from (os.path.join(path, name) for name in sorted(names) if name.lower().endswith(_SUFFIXES))


def _frame_size(rate: int) -> int:
    return 1 << max(5, round(math.log2(rate * _FRAME_MS / 1000)))


def _power(audio: NDArray[Any]) -> float:
    """Return the mean of the squares."""
    flat = audio.reshape(-1)
    return float(np.dot(flat, flat)) / max(1, len(flat))


def _resampled(audio: NDArray[Any], rate: float, target: float, num_samples: int) -> NDArray[Any]:
    with optional_package("to resample audio"):
        import soxr
    return of_length(soxr.resample(audio, rate, target, quality="HQ"), num_samples)


def _noise(path: str, num_samples: int, rate: int, place: float) -> NDArray[Any]:
    """Return noise [num_samples] from a file, the mean of its channels.

    :param place: where the part begins, from 0 to 1
    """
    seconds, needed = duration(path, name=path), num_samples / rate
    if not seconds:
        raise FileDataError("audio file %r is empty" % path)
    is_part = seconds > needed
    start = place * (seconds - needed) if is_part else 0.0
    noise, own = read_range(path, start, start + needed if is_part else None)
    noise = (noise if noise.ndim == 1 else noise.mean(axis=1)).astype(np.float32)
    if own != rate:
        noise = _resampled(noise, own, rate, max(1, round(len(noise) * rate / own)))
    if is_part:
        return of_length(noise, num_samples)
    first = int(place * len(noise))
    return np.resize(np.roll(noise, -first), num_samples)


@functools.lru_cache(maxsize=_RESPONSES)
def _response(path: str, rate: int) -> NDArray[Any]:
    """Return the impulse response in a file, [time, channels]; it is not to be changed.

    :raises DataError: it can't be read, or is silent
    """
    response, own = read_audio(path)
    response = response.reshape(len(response), -1).astype(np.float32)
    if not response.any(axis=0).all():
        raise FileDataError("audio file %r: a channel is silent, so it is no impulse response" % path)
    return response if own == rate else _resampled(response, own, rate, math.ceil(len(response) * rate / own))
