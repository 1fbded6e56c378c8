"""Features of audio, as the option ``audio`` of datasets describes them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import numbers
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError, FileError, did_you_mean, shown
from returnn_tf.config.options import above, at_least, between, from_options, log_inert, option
from returnn_tf.datasets.audio.augmentation import Augmentation
from returnn_tf.datasets.audio.decode import DECODERS, read_audio
from returnn_tf.datasets.audio.kinds import KINDS, Kind, Pitch, Raw
from returnn_tf.datasets.audio.packages import need_packages
from returnn_tf.datasets.audio.permute import RandomPermute
from returnn_tf.datasets.audio.spectra import Framing
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.read_ahead import default_threads

Function = Optional[Callable[..., Any]]


@dataclasses.dataclass
class AudioOptions:
    """The options of ``audio`` in a dataset."""

    window_len: float = option(0.025, check=above(0), help="length of a frame in seconds")
    step_len: float = option(0.010, check=above(0), help="distance of neighbouring frames in seconds")
    num_feature_filters: Optional[int] = option(
        None, check=at_least(1), help="features per frame, before with_delta and join_frames (default: 40; raw, f0: 1)"
    )
    with_delta: Union[bool, int] = option(
        False, check=between(0, 8), help="highest order of derivatives over time to append; True: 1"
    )
    norm_mean: Any = option(None, help="what to subtract: a number, 'per_seq', a file with a vector, or an array")
    norm_std_dev: Any = option(None, help="what to divide by afterwards, likewise")
    features: Any = option("mfcc", help="kind of features: %s, or a function" % ", ".join(KINDS))
    feature_options: Optional[Mapping[str, Any]] = option(None, help="options of the kind of features")
    augment: Optional[list[Mapping[str, Any]]] = option(
        None, help="changes of the audio in training, each a dict with class and options: docs/guide/augmentation.md"
    )
    augment_evaluation: bool = option(
        False, needs="augment", help="let data with augment be evaluated, searched and forwarded, too; else an error"
    )
    random_permute: Any = option(None, help="change the audio at random: True, or a dict of options")
    pre_process: Function = option(None, help="function (audio, sample_rate, random_state) that returns audio [time]")
    post_process: Function = option(None, help="function (features, seq_name) that returns features")
    sample_rate: Optional[int] = option(None, check=at_least(1), help="in Hz; audio with another one is an error")
    num_channels: Optional[int] = option(None, check=at_least(1), help="for raw: the features get an axis of channels")
    peak_normalization: bool = option(True, help="divide the audio by its largest absolute value")
    preemphasis: Optional[float] = option(None, help="this times the previous sample is subtracted from each")
    join_frames: Optional[int] = option(None, check=at_least(0), help="this many neighbouring frames become one")
    decoder: str = option("soundfile", choices=DECODERS, help="what decodes the files; soundfile is faster")
    raw_ogg_opts: Optional[Mapping[str, Any]] = option(
        None, help="of features 'raw_ogg'", unsupported="the codes inside of Ogg files are not read; use features 'raw'"
    )


#: Options that change audio at random.
_RANDOM = ("augment", "augment_evaluation", "random_permute")
#: Frames to which a polynomial is fitted.
_WIDTH = 9
#: The least standard deviation of "per_seq".
_MIN_DEVIATION = 0.01

#: The operand of a normalisation: a number, a vector, or "per_seq".
Norm = Union[float, NDArray[Any], str, None]


@functools.cache
def derivative_weights(order: int) -> NDArray[Any]:
    """Return the weights [9] for the derivative of a polynomial of this degree fitted to 9 frames.

    The derivative of degree ``order`` of such a polynomial is the same everywhere (Savitzky & Golay 1964).
    """
    times = np.arange(_WIDTH) - _WIDTH // 2
    fit = np.linalg.pinv(np.vander(times.astype(np.float64), order + 1, increasing=True))
    weights: NDArray[Any] = fit[order] * math.factorial(order)
    return weights


def derivative_reach() -> int:
    """Return how many frames before and after it the derivatives of a frame depend on."""
    return _WIDTH // 2


def with_derivatives(features: NDArray[Any], most: int) -> NDArray[Any]:
    """Append the derivatives of orders 1 to ``most`` of the features over time.

    :param features: [time, ...]; the last axis grows to ``(most + 1)`` times its size
    :raises DataError: there are fewer than 9 frames
    """
    num_frames = len(features)
    if num_frames < _WIDTH:
        raise FileDataError(
            "with_delta needs %d frames, but the audio has only %d. Leave it out, or switch with_delta off"
            % (_WIDTH, num_frames)
        )
    parts = [features]
    for order in range(1, most + 1):
        inner = sum(
            weight * features[i : num_frames - _WIDTH + 1 + i].astype(np.float64)
            for i, weight in enumerate(derivative_weights(order))
        )
        # the first and last frames belong to the first and last fit
        edges = [(_WIDTH // 2, _WIDTH // 2)] + [(0, 0)] * (features.ndim - 1)
        parts.append(np.pad(inner, edges, mode="edge").astype(np.float32))
    return np.concatenate(parts, axis=-1)


def check_norm(option: str, value: Any, dim: int, *, joined: bool, where: str) -> Norm:
    """Check the option ``norm_mean`` or ``norm_std_dev``, and read its file.

    :param dim: of the features, after derivatives
    :param joined: whether frames will be joined, which fits no vector
    :param where: prefix of errors
    :return: as `normalized` takes it
    """
    if value is None or (isinstance(value, str) and value == "per_seq"):
        return value
    name = "%s: option %r" % (where, option)
    if isinstance(value, str):
        try:
            vector, name = read_vector(value), "%s (file %r)" % (name, value)
        except DataError as exc:
            raise FileDataError("%s: %s" % (name, exc)) from None
    elif isinstance(value, (np.ndarray, numbers.Real)):
        vector = np.asarray(value, np.float32)
    else:
        raise FileError(
            "%s must be a number, 'per_seq', the name of a file with a vector, or an array, got %s (%s)"
            % (name, shown(value), type(value).__name__)
        )
    if not np.all(np.isfinite(vector)):
        raise FileError("%s holds values that are not finite" % name)
    if option == "norm_std_dev" and not np.all(vector > 0):
        raise FileError("%s divides, so that it must be above 0" % name)
    if vector.ndim == 0:
        return float(vector)
    if joined:
        raise FileError(
            "%s is a vector, which does not fit join_frames, since it is applied to the frames before they are joined. "
            "Use a number or 'per_seq'" % name
        )
    if vector.shape != (dim,):
        raise FileError(
            "%s has the shape %s, but the features have dim %d (with derivatives)" % (name, vector.shape, dim)
        )
    return vector


def read_vector(path: str) -> NDArray[Any]:
    """Read a text file of numbers as float32 [n]; DataError for anything else."""
    text = safe_files.read_text(path)
    try:
        values = [float(word) for line in text.splitlines() for word in line.split("#")[0].split()]
    except ValueError as exc:
        raise FileDataError("file %r must hold numbers, one per line: %s" % (path, exc)) from exc
    return np.array(values, np.float32)


def normalized(features: NDArray[Any], mean: Norm, deviation: Norm) -> NDArray[Any]:
    """Subtract a mean, and divide by a standard deviation; "per_seq": those of each feature over time.

    :param features: [time, ..., dim], float32
    """
    if isinstance(mean, str):
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    if mean is not None:
        features = features - np.asarray(mean, np.float32)
    if isinstance(deviation, str):
        deviation = np.maximum(features.std(axis=0, dtype=np.float64), _MIN_DEVIATION).astype(np.float32)
    if deviation is not None:
        features = features / np.asarray(deviation, np.float32)
    return features


def joined(features: NDArray[Any], count: int) -> NDArray[Any]:
    """Join neighbouring frames: [time, ..., dim] -> [ceil(time / count), ..., count * dim].

    The last frame is repeated to fill up. With channels this is a reshaping of numbers in their order, which does not
    keep the channels apart: trained models expect it.
    """
    missing = -len(features) % count
    if missing:
        features = np.concatenate([features, np.repeat(features[-1:], missing, axis=0)])
    return features.reshape(len(features) // count, *features.shape[1:-1], count * features.shape[-1])


class AudioFeatures:
    """Computes features of audio, [time, dim] float32, by checked options.

    >>> from returnn_tf.datasets.audio import AudioFeatures
    >>> features = AudioFeatures.make({"features": "log_mel_filterbank", "join_frames": 3}, owner="dataset 'train'")
    >>> features.dim
    120
    """

    def __init__(self, opts: AudioOptions, where: str):
        self.opts = opts
        #: Prefix of errors.
        self.where = where
        self._permute = RandomPermute.parse(opts.random_permute, where=where)
        self._augmentation = self._make_augmentation()
        self._function: Function = opts.features if callable(opts.features) else None
        #: The kind of features with its options; None: a function of the user computes them.
        self.kind = None if self._function else self._make_kind()
        # functions get what soundfile delivers by default
        simple = self.kind and not (opts.pre_process or self._permute)
        #: The precision in which audio is prepared.
        self.dtype = self.kind.dtype if self.kind and simple else "float64"
        #: Features per frame, before derivatives and joining.
        self.num_filters = self._check_num_filters()
        self._check_channels()
        own = self.num_filters * (int(opts.with_delta) + 1)
        joins = (opts.join_frames or 1) > 1
        #: Features per frame of the result.
        self.dim = own * (opts.join_frames or 1)
        #: What is subtracted from and divides the features, as `normalized` takes it.
        self.mean = check_norm("norm_mean", opts.norm_mean, own, joined=joins, where=where)
        self.deviation = check_norm("norm_std_dev", opts.norm_std_dev, own, joined=joins, where=where)
        with safe_files.wanted_by(where):
            need_packages(("soundfile", "scipy"), "to read audio")
            if self._augmentation:
                need_packages(("soxr",), "for augment")
            if isinstance(self.kind, Pitch):
                need_packages(("pyworld",), "for features 'f0'", package="pyworld")
            if self._permute and self._permute.rnd_pitch_switch > 0:
                need_packages(("soxr",), "for random_permute")
        if opts.sample_rate and self.kind:
            with safe_files.wanted_by(where):
                self.kind.check_frames(self.framing(opts.sample_rate), self.num_filters)

    @classmethod
    def make(cls, options: Mapping[str, Any], *, owner: str) -> AudioFeatures:
        """Check the options, and read the files that they name.

        :param options: the dict ``audio`` of a dataset; empty for all defaults
        :param owner: the dataset, for errors
        :raises ConfigError: an option is unknown, wrong, or does not go with another one
        :raises DataError: a file with a vector cannot be read
        """
        where = "%s: audio" % owner
        return cls(from_options(AudioOptions, options, where=where), where)

    @classmethod
    def undistorted(cls, options: Mapping[str, Any], *, owner: str) -> AudioFeatures:
        """Return the features without what changes audio at random, see `make`."""
        return cls.make({name: value for name, value in options.items() if name not in _RANDOM}, owner=owner)

    @property
    def draws(self) -> bool:
        """Return whether `extract` draws random numbers; functions of the user may."""
        opts = self.opts
        return bool(self._augmentation or self._permute or opts.pre_process or self._function)

    @property
    def spec(self) -> DataSpec:
        """Return the format of the features."""
        channels = self.opts.num_channels
        shape = (self.dim,) if channels is None else (channels, self.dim)
        return DataSpec(dim=self.dim, ndim=1 + len(shape), dtype="float32", shape=shape)

    def threads(self, wanted: Optional[int] = None) -> int:
        """Return the number of threads that may extract features at the same time.

        One where functions of the user take part: they may keep a state, or draw from a generator of their own.

        :param wanted: by default one per core, at most 4
        """
        opts = self.opts
        if self._function or opts.pre_process or opts.post_process:
            return 1
        return wanted or default_threads()

    # ---- checks of options

    def _make_kind(self) -> Kind:
        name = self.opts.features
        if name == "raw_ogg":
            raise FileError(
                "%s: features 'raw_ogg' are not supported: they are codes inside of Ogg Vorbis files that need a "
                "native library. Use another kind of features; Ogg files are decoded for all of them" % self.where
            )
        if not isinstance(name, str) or name not in KINDS:
            raise FileError(
                "%s: unknown kind of features: %s. %s"
                % (self.where, shown(name), did_you_mean(name, KINDS, in_order=True))
            )
        where = "%s: feature_options of %r" % (self.where, name)
        if name == "raw" and self.opts.feature_options:
            log_inert(self.where, "feature_options", "features 'raw' have no options")
            return KINDS[name]()
        return from_options(KINDS[name], self.opts.feature_options or {}, where=where)

    def _make_augmentation(self) -> Optional[Augmentation]:
        opts = self.opts
        if not opts.augment:
            return None
        result = Augmentation.parse(opts.augment, where=self.where)
        if opts.peak_normalization and result.idle_volume:
            raise FileError(
                "%s: augment, step %d (volume) has no effect, since peak_normalization (True by default) divides by "
                "the peak afterwards. Set it to False, or remove the step" % (self.where, result.idle_volume)
            )
        return result

    def _check_num_filters(self) -> int:
        kind, given = self.kind, self.opts.num_feature_filters
        number = given or (kind.default_filters if kind else Kind.default_filters)
        if kind and kind.only_filters not in (None, number):
            raise FileError(
                "%s: option 'num_feature_filters' is %d, but features %r have %s. Remove it"
                % (self.where, number, self.opts.features, kind.only_filters)
            )
        fault = kind.fault(number) if kind else None
        if fault:
            raise FileError("%s: features %r: %s" % (self.where, self.opts.features, fault))
        return number

    def _check_channels(self) -> None:
        if self.opts.num_channels is not None and not isinstance(self.kind, Raw):
            raise FileError(
                "%s: option 'num_channels' is for features 'raw' only, got features %s"
                % (self.where, shown(self.opts.features))
            )
        if self.opts.num_channels is not None and self.opts.pre_process:
            raise FileError("%s: pre_process returns audio [time], so that num_channels must not be set" % self.where)

    def framing(self, sample_rate: int) -> Framing:
        """Return the frames at a rate in Hz."""
        return Framing.make(sample_rate, self.opts.window_len, self.opts.step_len)

    # ---- the computation

    def read(self, content: Union[bytes, str], *, name: str = "") -> tuple[NDArray[Any], int]:
        """Decode an audio file by the decoder of the options, see `read_audio`."""
        return read_audio(content, name=name, decoder=self.opts.decoder)

    def extract(
        self, samples: NDArray[Any], sample_rate: int, *, rng: np.random.RandomState, seq_name: str
    ) -> NDArray[Any]:
        """Compute the features of one sequence.

        :param samples: [time] or [time, channels], floats
        :param sample_rate: of the samples, in Hz
        :param rng: for ``augment``, ``random_permute``, ``pre_process`` and functions; else nothing is drawn
        :param seq_name: tag of the sequence, for errors and ``post_process``
        :return: [frames, dim], float32; [time, channels, dim] with ``num_channels``
        :raises DataError: the audio is empty, has another rate or number of channels, or is too short
        """
        audio = self._prepared(samples, sample_rate, rng)
        features = np.asarray(self._features(audio, sample_rate, rng), np.float32)
        return self._finished(features, seq_name)

    def augmented(self, samples: NDArray[Any], sample_rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        """Return the audio of a sequence after ``augment``: what features are computed of; see `extract`."""
        if not self._augmentation:
            return samples
        self._check_samples(samples, sample_rate)
        return self._augmentation.apply(samples, sample_rate, rng)

    def heard(self, samples: NDArray[Any], sample_rate: int, *, rng: np.random.RandomState) -> NDArray[Any]:
        """Return the audio after all changes but ``preemphasis``, to listen to what features are computed of.

        The arguments are those of `extract`, which draws the same numbers.
        """
        plain = copy.copy(self)
        plain.opts = dataclasses.replace(self.opts, preemphasis=None)
        return plain._prepared(samples, sample_rate, rng)

    def emphasized(self, samples: NDArray[Any], sample_rate: int) -> NDArray[Any]:
        """Check samples, and subtract a share of the one before from each, as option ``preemphasis`` says.

        :return: in the precision in which features are computed
        :raises DataError: see `extract`
        """
        self._check_samples(samples, sample_rate)
        audio = samples.astype(self.dtype, copy=False)
        if self.opts.preemphasis:
            # along the last axis, thus from channel to channel where there are several, as trained models expect
            audio = np.concatenate([audio[..., :1], audio[..., 1:] - self.opts.preemphasis * audio[..., :-1]], axis=-1)
        if not np.isfinite(max(audio.max(), -audio.min())):
            raise FileDataError("the audio has samples that are not finite (NaN or Inf)")
        return audio

    def _prepared(self, samples: NDArray[Any], sample_rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        opts = self.opts
        audio = self.emphasized(self.augmented(samples, sample_rate, rng), sample_rate)
        peak = max(audio.max(), -audio.min())
        if opts.peak_normalization and peak > 0:
            audio = audio / peak
        if self._permute:
            audio = self._permute.apply(audio, rng)
        if opts.pre_process:
            audio = np.asarray(opts.pre_process(audio=audio, sample_rate=sample_rate, random_state=rng))
            if audio.ndim != 1 or not len(audio) or audio.dtype.kind != "f":
                raise FileDataError(
                    "pre_process must return floats of shape [time], but returned %s %s" % (audio.dtype, audio.shape)
                )
        return self.shaped(audio)

    def shaped(self, audio: NDArray[Any]) -> NDArray[Any]:
        """Return audio as the kind of features takes it: [time], or [time, channels] with ``num_channels``.

        :raises DataError: it has another number of channels
        """
        self._check_shape(audio)
        return audio if self.opts.num_channels is None else audio.reshape(len(audio), -1)

    def _check_samples(self, samples: NDArray[Any], sample_rate: int) -> None:
        if samples.ndim not in (1, 2) or samples.dtype.kind != "f":
            raise FileDataError(
                "samples must be floats from -1 to 1, [time] or [time, channels], not %s %s"
                % (samples.dtype, samples.shape)
            )
        if not samples.size:
            raise FileDataError("the audio is empty. Leave it out")
        if self.opts.sample_rate not in (None, sample_rate):
            raise FileDataError(
                "the audio has %d samples per second, but the option sample_rate is %d. Convert the audio, or set "
                "sample_rate to None if the rates may differ" % (sample_rate, self.opts.sample_rate or 0)
            )

    def _check_shape(self, audio: NDArray[Any]) -> None:
        channels = 1 if audio.ndim == 1 else audio.shape[1]
        if audio.ndim == 2 and self.opts.num_channels is None:
            raise FileDataError(
                "the audio has %d channels, but features are computed of one. Convert it, mix the channels in "
                "pre_process, or use features 'raw' with num_channels=%d" % (channels, channels)
            )
        if self.opts.num_channels not in (None, channels):
            raise FileDataError(
                "the audio has %d channels, but num_channels is %s" % (channels, self.opts.num_channels)
            )

    def _features(self, audio: NDArray[Any], sample_rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        if self.kind:
            return self.kind.extract(audio, self.framing(sample_rate), self.num_filters)
        assert self._function is not None
        return self._of_function(self._function, audio, sample_rate, rng)

    def _of_function(
        self, function: Callable[..., Any], audio: NDArray[Any], sample_rate: int, rng: np.random.RandomState
    ) -> NDArray[Any]:
        result = np.asarray(
            function(
                random_state=rng,
                sample_rate=sample_rate,
                window_len=self.opts.window_len,
                step_len=self.opts.step_len,
                num_feature_filters=self.num_filters,
                audio=audio,
                **(self.opts.feature_options or {}),
            )
        )
        if result.ndim != 2 or result.shape[1] != self.num_filters or result.dtype.kind not in "fiu":
            raise FileDataError(
                "the function %r must return features [frames, %d], but returned %s %s. Set num_feature_filters to "
                "what it returns" % (_name(function), self.num_filters, result.dtype, result.shape)
            )
        return result

    def _finished(self, features: NDArray[Any], seq_name: str) -> NDArray[Any]:
        opts = self.opts
        if opts.with_delta:
            features = with_derivatives(features, int(opts.with_delta))
        features = normalized(features, self.mean, self.deviation)
        if (opts.join_frames or 1) > 1:
            features = joined(features, int(opts.join_frames or 1))
        if opts.post_process:
            result = np.asarray(opts.post_process(features, seq_name=seq_name))
            if result.ndim != features.ndim or result.shape[-1] != features.shape[-1] or result.dtype.kind not in "fiu":
                raise FileDataError(
                    "post_process must return features as it gets them, %s %s, but returned %s %s"
                    % (features.dtype, features.shape, result.dtype, result.shape)
                )
            features = result.astype(np.float32, copy=False)
        return features


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
