"""Features of audio, as the option ``audio`` of datasets describes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.config.errors import shown
from returnn_tf.config.options import from_options, log_inert
from returnn_tf.datasets.audio.after import check_norm, joined, normalized, with_derivatives
from returnn_tf.datasets.audio.decode import read_audio
from returnn_tf.datasets.audio.kinds import KINDS, Kind, Pitch, Raw
from returnn_tf.datasets.audio.options import AudioOptions, Function
from returnn_tf.datasets.audio.packages import need_packages
from returnn_tf.datasets.audio.permute import RandomPermute
from returnn_tf.datasets.audio.spectra import Framing
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.read_ahead import default_threads


class AudioFeatures:
    """Computes features of audio, [time, dim] float32, by checked options.

    >>> from returnn_tf.datasets.audio import AudioFeatures
    >>> features = AudioFeatures.make({"features": "log_mel_filterbank", "join_frames": 3}, owner="dataset 'train'")
    >>> features.dim
    120
    """

    def __init__(self, opts: AudioOptions, where: str):
        self.opts = opts
        self._where = where
        self._permute = RandomPermute.parse(opts.random_permute, where=where)
        self._function: Function = opts.features if callable(opts.features) else None
        self._kind = None if self._function else self._make_kind()
        # functions get what soundfile delivers by default
        simple = self._kind and not (opts.pre_process or self._permute)
        self._dtype = self._kind.dtype if self._kind and simple else "float64"
        self._num_filters = self._check_num_filters()
        self._check_channels()
        own = self._num_filters * (int(opts.with_delta) + 1)
        joins = (opts.join_frames or 1) > 1
        #: Features per frame of the result.
        self.dim = own * (opts.join_frames or 1)
        self._mean = check_norm("norm_mean", opts.norm_mean, own, joined=joins, where=where)
        self._deviation = check_norm("norm_std_dev", opts.norm_std_dev, own, joined=joins, where=where)
        with self._named(where):
            need_packages(("soundfile", "scipy"), "to read audio")
            if isinstance(self._kind, Pitch):
                need_packages(("pyworld",), "for features 'f0'", package="pyworld")
            if self._permute and self._permute.rnd_pitch_switch > 0:
                need_packages(("soxr",), "for random_permute")
        if opts.sample_rate and self._kind:
            with self._named(where):
                self._kind.check_frames(self._frames(opts.sample_rate), self._num_filters)

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

    @property
    def spec(self) -> DataSpec:
        """Return the format of the features."""
        channels = self.opts.num_channels
        shape = (self.dim,) if channels is None else (channels, self.dim)
        return DataSpec(dim=self.dim, ndim=1 + len(shape), dtype="float32", shape=shape)

    def threads(self, wanted: Optional[int] = None) -> int:
        """Return how many threads may extract features at the same time.

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
            raise ConfigError(
                "%s: features 'raw_ogg' are not supported: they are codes inside of Ogg Vorbis files that need a "
                "native library. Use another kind of features; Ogg files are decoded for all of them" % self._where
            )
        if not isinstance(name, str) or name not in KINDS:
            raise ConfigError(
                "%s: unknown kind of features: %s. %s"
                % (self._where, shown(name), did_you_mean(name, KINDS, in_order=True))
            )
        where = "%s: feature_options of %r" % (self._where, name)
        if name == "raw" and self.opts.feature_options:
            log_inert(self._where, "feature_options", "features 'raw' have no options")
            return KINDS[name]()
        return from_options(KINDS[name], self.opts.feature_options or {}, where=where)

    def _check_num_filters(self) -> int:
        kind, given = self._kind, self.opts.num_feature_filters
        number = given or (kind.default_filters if kind else Kind.default_filters)
        if kind and kind.only_filters not in (None, number):
            raise ConfigError(
                "%s: option 'num_feature_filters' is %d, but features %r have %s. Remove it"
                % (self._where, number, self.opts.features, kind.only_filters)
            )
        fault = kind.fault(number) if kind else None
        if fault:
            raise ConfigError("%s: features %r: %s" % (self._where, self.opts.features, fault))
        return number

    def _check_channels(self) -> None:
        if self.opts.num_channels is not None and not isinstance(self._kind, Raw):
            raise ConfigError(
                "%s: option 'num_channels' is for features 'raw' only, got features %s"
                % (self._where, shown(self.opts.features))
            )
        if self.opts.num_channels is not None and self.opts.pre_process:
            raise ConfigError(
                "%s: pre_process returns audio [time], so that num_channels must not be set" % self._where
            )

    def _frames(self, sample_rate: int) -> Framing:
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
        :param rng: for ``random_permute``, ``pre_process`` and functions; else nothing is drawn
        :param seq_name: tag of the sequence, for errors and ``post_process``
        :return: [frames, dim], float32; [time, channels, dim] with ``num_channels``
        :raises DataError: the audio is empty, has another rate or number of channels, or is too short
        """
        audio = self._prepared(samples, sample_rate, rng)
        features = np.asarray(self._features(audio, sample_rate, rng), np.float32)
        return self._finished(features, seq_name)

    @staticmethod
    @contextlib.contextmanager
    def _named(where: str) -> Iterator[None]:
        """Let errors begin with a place."""
        try:
            yield
        except (ConfigError, DataError) as exc:
            raise type(exc)("%s: %s" % (where, exc)) from None

    def _prepared(self, samples: NDArray[Any], sample_rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        opts = self.opts
        self._check_samples(samples, sample_rate)
        audio = samples.astype(self._dtype, copy=False)
        if opts.preemphasis:
            # along the last axis, thus from channel to channel where there are several, as trained models expect
            audio = np.concatenate([audio[..., :1], audio[..., 1:] - opts.preemphasis * audio[..., :-1]], axis=-1)
        peak = max(audio.max(), -audio.min())
        if not np.isfinite(peak):
            raise DataError("the audio has samples that are not finite (NaN or Inf)")
        if opts.peak_normalization and peak > 0:
            audio = audio / peak
        if self._permute:
            audio = self._permute.apply(audio, rng)
        if opts.pre_process:
            audio = np.asarray(opts.pre_process(audio=audio, sample_rate=sample_rate, random_state=rng))
            if audio.ndim != 1 or not len(audio) or audio.dtype.kind != "f":
                raise DataError(
                    "pre_process must return floats of shape [time], but returned %s %s" % (audio.dtype, audio.shape)
                )
        self._check_shape(audio)
        return audio if self.opts.num_channels is None else audio.reshape(len(audio), -1)

    def _check_samples(self, samples: NDArray[Any], sample_rate: int) -> None:
        if samples.ndim not in (1, 2) or samples.dtype.kind != "f":
            raise DataError(
                "samples must be floats from -1 to 1, [time] or [time, channels], not %s %s"
                % (samples.dtype, samples.shape)
            )
        if not samples.size:
            raise DataError("the audio is empty. Leave it out")
        if self.opts.sample_rate not in (None, sample_rate):
            raise DataError(
                "the audio has %d samples per second, but the option sample_rate is %d. Convert the audio, or set "
                "sample_rate to None if the rates may differ" % (sample_rate, self.opts.sample_rate or 0)
            )

    def _check_shape(self, audio: NDArray[Any]) -> None:
        channels = 1 if audio.ndim == 1 else audio.shape[1]
        if audio.ndim == 2 and self.opts.num_channels is None:
            raise DataError(
                "the audio has %d channels, but features are computed of one. Convert it, mix the channels in "
                "pre_process, or use features 'raw' with num_channels=%d" % (channels, channels)
            )
        if self.opts.num_channels not in (None, channels):
            raise DataError("the audio has %d channels, but num_channels is %s" % (channels, self.opts.num_channels))

    def _features(self, audio: NDArray[Any], sample_rate: int, rng: np.random.RandomState) -> NDArray[Any]:
        if self._kind:
            return self._kind.extract(audio, self._frames(sample_rate), self._num_filters)
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
                num_feature_filters=self._num_filters,
                audio=audio,
                **(self.opts.feature_options or {}),
            )
        )
        if result.ndim != 2 or result.shape[1] != self._num_filters or result.dtype.kind not in "fiu":
            raise DataError(
                "the function %r must return features [frames, %d], but returned %s %s. Set num_feature_filters to "
                "what it returns" % (_name(function), self._num_filters, result.dtype, result.shape)
            )
        return result

    def _finished(self, features: NDArray[Any], seq_name: str) -> NDArray[Any]:
        opts = self.opts
        if opts.with_delta:
            features = with_derivatives(features, int(opts.with_delta))
        features = normalized(features, self._mean, self._deviation)
        if (opts.join_frames or 1) > 1:
            features = joined(features, int(opts.join_frames or 1))
        if opts.post_process:
            result = np.asarray(opts.post_process(features, seq_name=seq_name))
            if result.ndim != features.ndim or result.shape[-1] != features.shape[-1] or result.dtype.kind not in "fiu":
                raise DataError(
                    "post_process must return features as it gets them, %s %s, but returned %s %s"
                    % (features.dtype, features.shape, result.dtype, result.shape)
                )
            features = result.astype(np.float32, copy=False)
        return features


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
