"""Reading, cutting, resampling and encoding the audio of an utterance."""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.corpus_list import Utterance
from returnn_tf.config.errors import DataError, FileDataError
from returnn_tf.datasets.audio import read_audio
from returnn_tf.datasets.audio.encode import encoded
from returnn_tf.datasets.audio.packages import optional_package

FORMATS = {"ogg": ("OGG", "VORBIS"), "flac": ("FLAC", "PCM_16"), "wav": ("WAV", "PCM_16")}
_MAX_RATE_RATIO = 64  # of two sample rates; memory for resampling grows with it


@dataclass(frozen=True)
class Encoding:
    """How audio is stored.

    :param format: a key of `FORMATS`
    :param sample_rate: Hz; None: as it is
    :param quality: of a format with losses, from 0 to 1; None: the default of the library
    """

    format: str
    sample_rate: Optional[int] = None
    quality: Optional[float] = None
    reads_files: bool = True

    def encode(self, utterance: Utterance) -> tuple[Optional[bytes], float]:
        """Return the content of its audio file, and its duration in seconds.

        A whole file that has this format and rate already is copied.

        :raises DataError: the audio can't be read, or the times are outside of it; names file and place
        """
        assert utterance.audio is not None
        if not os.path.exists(utterance.audio):
            named = utterance.relative_audio or utterance.audio
            where = (
                "" if os.path.isabs(named) else " in the folder %r; if it is in another one, add --audio-root FOLDER"
            )
            folder = os.path.abspath(utterance.audio[: len(utterance.audio) - len(named)] or os.curdir)
            text = "%s: audio file %r does not exist" + (where % folder if where else "")
            raise FileDataError(text % (utterance.place, named))
        try:
            samples, rate = read_audio(utterance.audio)
        except DataError as exc:
            raise FileDataError("%s: %s" % (utterance.place, exc)) from exc
        if not len(samples):
            raise FileDataError("%s: %r has no samples" % (utterance.place, utterance.audio))
        channels = 1 if samples.ndim == 1 else samples.shape[1]
        if utterance.track is not None:
            if utterance.track >= channels:
                text = "%s: %r has %d channel%s, but no track %d (they count from 0)"
                ending = "" if channels == 1 else "s"
                raise FileDataError(text % (utterance.place, utterance.audio, channels, ending, utterance.track))
            samples = samples if samples.ndim == 1 else np.ascontiguousarray(samples[:, utterance.track])
        if utterance.is_whole_file and (utterance.track is None or channels == 1):
            with open(utterance.audio, "rb") as file:
                content = file.read()
            if self._fits(content, rate):
                return content, len(samples) / rate
        samples = _cut(samples, rate, utterance)
        if self.sample_rate and self.sample_rate != rate:
            try:
                samples = resampled(samples, rate, self.sample_rate, utterance.audio)
            except DataError as exc:
                raise FileDataError("%s: %s" % (utterance.place, exc)) from exc
            rate = self.sample_rate
        return self._encoded(samples, rate, utterance), len(samples) / rate

    def _fits(self, content: bytes, rate: int) -> bool:
        with optional_package("to encode audio"):
            import soundfile
        info = soundfile.info(io.BytesIO(content))
        wanted = FORMATS[self.format]
        return (info.format, info.subtype) == wanted and self.sample_rate in (None, rate) and self.quality is None

    def _encoded(self, samples: NDArray[Any], rate: int, utterance: Utterance) -> bytes:
        try:
            return encoded(samples, rate, *FORMATS[self.format], quality=self.quality if self.format == "ogg" else None)
        except DataError as exc:
            raise FileDataError("%s: %s" % (utterance.place, exc)) from exc


def _cut(samples: NDArray[Any], rate: int, utterance: Utterance) -> NDArray[Any]:
    start = round(utterance.start * rate)
    end = len(samples) if utterance.end is None else min(round(utterance.end * rate), len(samples))
    if start >= end:
        text = "%s: starts at %g s, but %r has %.2f s"
        raise FileDataError(text % (utterance.place, utterance.start, utterance.audio, len(samples) / rate))
    return samples[start:end]


def resampled(samples: NDArray[Any], rate: int, target: int, name: str) -> NDArray[Any]:
    """Return the audio at another sample rate, with as many samples as fit in its duration.

    :param samples: [time] or [time, channels]
    :param name: of the file, for errors
    :raises DataError: the rates are too far from each other
    """
    if not 1 / _MAX_RATE_RATIO <= rate / target <= _MAX_RATE_RATIO:
        text = "the sample rate of %r is %d Hz, too far from %d Hz. Is the header of the file damaged?"
        raise FileDataError(text % (name, rate, target))
    with optional_package("to resample audio"):
        import scipy.signal
    divisor = math.gcd(rate, target)
    return np.asarray(scipy.signal.resample_poly(samples, target // divisor, rate // divisor, axis=0))
