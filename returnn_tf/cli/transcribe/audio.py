"""Audio files for a model: their samples as it expects them, cut at pauses where they are long, and their features."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.audio_files import resampled
from returnn_tf.config.errors import CommandError, ConfigError, DataError, FileDataError
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.audio_range import channel_of
from returnn_tf.logging.log import log

MIX = "mix"
#: Seconds of a frame of which the power is looked at, of the pause that is looked for, and in which it is the quietest.
_FRAME, _PAUSE, _NEAR = 0.01, 0.2, 0.5
_LOUDER = 4.0
_RNG = np.random.RandomState(0)


def channel(value: str) -> Union[int, str]:
    """Convert the value of the option ``--channel``."""
    if value == MIX:
        return value
    if not value.isdecimal():
        raise argparse.ArgumentTypeError("expected a number from 0, or %r, not %r" % (MIX, value))
    return int(value)


def rate_of_training(features: AudioFeatures, given: Optional[int], where: str) -> Optional[int]:
    """Return the sample rate of the training data, as the config or the option ``--sample-rate`` says it.

    :param given: the option
    :param where: begin of errors
    :raises ConfigError: they contradict each other
    """
    rate = features.opts.sample_rate
    if rate and given not in (None, rate):
        raise CommandError(
            "%s: --sample-rate %d: the config says %d (option sample_rate of audio)" % (where, given or 0, rate)
        )
    return rate or given


def warn_of_rate() -> None:
    """Log that the sample rate of audio is not checked."""
    log.warn(
        "The sample rate of the audio is not checked, as the config does not say that of the training data (option "
        "sample_rate of audio). Give it: --sample-rate HZ"
    )


@dataclass(frozen=True)
class AudioPart:
    """A part of an audio file, which is recognised as one sequence.

    :param start: in seconds from the begin of the file
    :param seconds: its duration
    :param features: [frames, ...]
    """

    start: float
    seconds: float
    features: NDArray[Any]


@dataclass(frozen=True)
class AudioReader:
    """Reads audio files; may be called in several threads, as the features may.

    :param features: of the model
    :param sample_rate: of the audio that the model was trained on, in Hz; None: unknown, so that it is not checked
    :param resample: convert audio of another rate, which is an error otherwise
    :param channel: of audio with several: its number from 0, or "mix" for their mean; None: they are an error
    :param longest: seconds of a part; None: files are not cut
    """

    features: AudioFeatures
    sample_rate: Optional[int] = None
    resample: bool = False
    channel: Union[int, str, None] = None
    longest: Optional[float] = None

    def read(self, path: str, name: str) -> list[AudioPart]:
        """Return the parts of a file, one after the other.

        :param name: of the file, for errors
        :raises DataError: the file is missing, damaged, empty or no audio, or is not what the model takes; names it
        """
        if not os.path.exists(path):  # the folder in which this process works is not that of the user
            raise FileDataError("audio file %r does not exist" % name)
        samples, rate = self.features.read(path, name=name)
        if not samples.size:
            raise FileDataError("audio file %r has no samples. Leave it out" % name)
        samples = self.of_channel(samples, name)
        samples, rate = self._at_rate(samples, rate, name)
        borders = [0, *cuts(samples, rate, self.longest), len(samples)]
        parts = []
        for first, past in zip(borders, borders[1:]):
            try:
                features = self.features.extract(samples[first:past], rate, rng=_RNG, seq_name=name)
            except (ConfigError, DataError) as exc:
                raise FileDataError("audio file %r: %s" % (name, exc)) from exc
            parts.append(AudioPart(first / rate, (past - first) / rate, features))
        return parts

    def of_channel(self, samples: NDArray[Any], name: str) -> NDArray[Any]:
        """Return the channel that the model takes, [time], or all of them where it takes them.

        :param samples: [time] or [time, channels]
        :raises DataError: the model takes one, and it is not said which
        """
        opts = self.features.opts
        if self.channel == MIX:
            return samples if samples.ndim == 1 else samples.mean(axis=1, dtype=samples.dtype)
        if self.channel is not None:
            return channel_of(samples, int(self.channel), name)
        if samples.ndim == 2 and opts.num_channels is None and opts.pre_process is None:
            text = (
                "audio file %r has %d channels, but the model takes one: --channel 0 (or another one), or --channel %s"
            )
            raise FileDataError(text % (name, samples.shape[1], MIX))
        return samples

    def _at_rate(self, samples: NDArray[Any], rate: int, name: str) -> tuple[NDArray[Any], int]:
        wanted = self.sample_rate
        if wanted is None or rate == wanted:
            return samples, rate
        if not self.resample:
            text = "audio file %r has %d samples per second, but the model takes %d. --resample converts it"
            raise FileDataError(text % (name, rate, wanted))
        return resampled(samples, rate, wanted, name).astype(samples.dtype, copy=False), wanted


def cuts(samples: NDArray[Any], rate: int, longest: Optional[float]) -> list[int]:
    """Return where to cut audio, so that no part is longer than this.

    A part ends in the middle of its last pause: 0.2 seconds that are at most 6 dB louder than the quietest ones, and
    quieter than the half second before. Its first eighth is left out.

    :param samples: [time] or [time, channels]
    :param rate: in Hz
    :param longest: in seconds; None: without limit
    """
    if longest is None or len(samples) <= longest * rate:
        return []
    size = max(round(_FRAME * rate), 1)
    count = len(samples) // size
    power = np.square(samples[: count * size].astype(np.float64)).reshape(count, -1).mean(axis=1)
    width = min(round(_PAUSE / _FRAME), count)
    sums = np.cumsum(np.concatenate([[0.0], power]))
    pauses = sums[width:] - sums[:-width]  # pauses[i]: the power of the frames from i to i + width
    rounding = 1e-9 * max(float(pauses.max()), 1e-30)  # of the sums, where there is silence
    most = max(int(longest * rate) // size, 2 * width)
    found, start = [], 0
    while len(samples) - start > longest * rate:
        frame = start // size
        first, past = frame + most // 8, min(frame + most - width, len(pauses) - 1) + 1
        quiet = pauses[first:past] <= _LOUDER * pauses[first:past].min() + rounding
        last = first + int(np.flatnonzero(quiet)[-1])
        near = pauses[max(first, last - round(_NEAR / _FRAME)) : last + 1]
        start = (last - int(np.argmin(near[::-1])) + width // 2) * size
        found.append(start)
    return found
