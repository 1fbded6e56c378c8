"""Features of audio that comes block by block: those that `AudioFeatures` computes of all of it."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileError
from returnn_tf.datasets.audio.features import AudioFeatures, derivative_reach, joined, normalized, with_derivatives
from returnn_tf.datasets.audio.kinds import Edges, Kind


def check_streams(features: AudioFeatures) -> None:
    """Check that features can be computed while the audio comes.

    :raises ConfigError: they need all of the audio; names all options because of which they do
    """
    opts, kind = features.opts, features.kind
    faults = []
    if kind is None:
        faults.append("features is a function, which gets all of the audio")
    elif kind.needs_all:
        faults.append("of features %r %s" % (opts.features, kind.needs_all))
    if opts.peak_normalization:
        faults.append("peak_normalization (True by default) divides by the peak of the audio: set it to False")
    for name in ("norm_mean", "norm_std_dev"):
        if isinstance(getattr(opts, name), str) and getattr(opts, name) == "per_seq":
            faults.append("%s is 'per_seq': set it to numbers of the training data" % name)
    faults += ["%s is a function, which gets all of it" % each for each in _FUNCTIONS if getattr(opts, each)]
    if faults:
        raise FileError(
            "%s: these features can't be computed while the audio comes: %s. A model with other features is trained "
            "anew" % (features.where, "; ".join(faults))
        )


_FUNCTIONS = ("pre_process", "post_process")


class FeatureStream:
    """Computes the features of one sequence block by block.

    :param features: how; checked by `check_streams`
    :param sample_rate: in Hz
    :raises ConfigError: the options do not fit to the sample rate
    """

    def __init__(self, features: AudioFeatures, sample_rate: int) -> None:
        check_streams(features)
        assert features.kind is not None
        features.kind.check_frames(features.framing(sample_rate), features.num_filters)
        self._features, self._rate = features, sample_rate
        self._last: Optional[NDArray[Any]] = None
        self._frames = _Frames(features, features.kind, sample_rate)
        self._derivatives = _Derivatives(int(features.opts.with_delta)) if features.opts.with_delta else None
        self._waiting = np.zeros([0, *_frame_shape(features)], np.float32)

    def add(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Return the frames that are complete with some more samples.

        :param samples: [time] or [time, channels], floats
        :raises DataError: see `AudioFeatures.extract`
        """
        if not len(samples):
            return self._joined(self._waiting[:0], False)
        return self._finished(self._frames.add(self._prepared(samples)), False)

    def end(self) -> NDArray[np.float32]:
        """Return the other frames at the end of the audio.

        :raises DataError: there are too few samples for any
        """
        return self._finished(self._frames.end(), True)

    def _prepared(self, samples: NDArray[Any]) -> NDArray[Any]:
        before = self._last
        self._last = samples[-1:]
        if before is None or samples.ndim > 1:
            return self._features.shaped(self._features.emphasized(samples, self._rate))
        audio = self._features.emphasized(np.concatenate([before, samples]), self._rate)
        return self._features.shaped(audio[1:])

    def _finished(self, frames: NDArray[Any], is_end: bool) -> NDArray[np.float32]:
        if self._derivatives is not None:
            frames = self._derivatives.add(frames, is_end)
        frames = normalized(frames, self._features.mean, self._features.deviation)
        return self._joined(frames, is_end)

    def _joined(self, frames: NDArray[Any], is_end: bool) -> NDArray[np.float32]:
        count = self._features.opts.join_frames or 1
        frames = np.concatenate([self._waiting, frames])
        complete = len(frames) if is_end else len(frames) // count * count
        self._waiting = frames[complete:]
        return joined(frames[:complete], count) if count > 1 else frames[:complete]


def lookahead_seconds(features: AudioFeatures, sample_rate: int) -> float:
    """Return the seconds of audio after the end of its step that a frame of features needs."""
    assert features.kind is not None
    frames = features.framing(sample_rate)
    cuts = features.kind.cuts(frames, features.num_filters)
    first = {Edges.NONE: 0, Edges.ZEROS: -(cuts.size // 2), Edges.MIRRORED: frames.mirrored_first}[cuts.edges]
    reach = derivative_reach() * cuts.shift if features.opts.with_delta else 0
    return max(0, first + cuts.size - cuts.shift + reach) / sample_rate


def _frame_shape(features: AudioFeatures) -> list[int]:
    opts = features.opts
    dim = features.num_filters * (int(opts.with_delta) + 1)
    return [dim] if opts.num_channels is None else [opts.num_channels, dim]


class _Frames:
    """Cuts audio into frames, and computes the features of each.

    ``_audio`` are the samples from one frame before the next one on, as the mirrored end may need so many.
    """

    def __init__(self, features: AudioFeatures, kind: Kind, sample_rate: int) -> None:
        self._kind, self._num_filters = kind, features.num_filters
        self._framing = features.framing(sample_rate)
        self._within = dataclasses.replace(self._framing, within=True)
        self._cuts = kind.cuts(self._framing, features.num_filters)
        self._audio: Optional[NDArray[Any]] = None
        self._total = 0  # samples so far
        self._first = 0  # index of the first one in _audio; negative: before the audio
        self._next = 0  # where the next frame begins
        self._begun = False

    def add(self, audio: NDArray[Any]) -> NDArray[Any]:
        self._audio = audio if self._audio is None else np.concatenate([self._audio, audio])
        self._total += len(audio)
        if not self._begun and not self._begin():
            return self._none()
        past = self._first + len(self._audio)
        return self._computed(max(0, (past - self._next - self._cuts.size) // self._cuts.shift + 1))

    def end(self) -> NDArray[Any]:
        """Return the frames that reach over the end of the audio."""
        size, shift, edges = self._cuts.size, self._cuts.shift, self._cuts.edges
        if not self._begun or self._next == self._start:  # there was no frame so far: all of the audio is there
            audio = np.zeros(0) if self._audio is None else self._audio[max(0, -self._first) :]
            return np.asarray(self._kind.extract(audio, self._framing, self._num_filters), np.float32)
        assert self._audio is not None
        past = self._total
        if edges is Edges.MIRRORED:
            count = self._framing.mirrored_count(self._total) - (self._next - self._start) // shift
            past = self._next + (count - 1) * shift + size
            pad = [(0, max(0, past - self._total))] + [(0, 0)] * (self._audio.ndim - 1)
            self._audio = np.pad(self._audio, pad, mode="symmetric")
        elif edges is Edges.ZEROS:
            past += size // 2
            self._audio = np.concatenate([self._audio, np.zeros(size // 2, self._audio.dtype)])
        return self._computed(max(0, (past - self._next - size) // shift + 1))

    @property
    def _start(self) -> int:
        """Return where the first frame begins."""
        if self._cuts.edges is Edges.MIRRORED:
            return self._framing.mirrored_first
        return -(self._cuts.size // 2) if self._cuts.edges is Edges.ZEROS else 0

    def _begin(self) -> bool:
        """Put what is before the audio before it; return whether there is enough audio for that."""
        assert self._audio is not None
        start = self._next = self._start
        if self._cuts.edges is Edges.MIRRORED and self._total < self._cuts.size + max(0, start):
            return False
        if start < 0:
            edge = np.zeros(-start, self._audio.dtype)
            if self._cuts.edges is Edges.MIRRORED:
                edge = self._audio[:-start][::-1]
            self._audio, self._first = np.concatenate([edge, self._audio]), start
        self._begun = True
        return True

    def _computed(self, count: int) -> NDArray[Any]:
        """Return the next frames."""
        assert self._audio is not None
        if not count:
            return self._none()
        size, shift = self._cuts.size, self._cuts.shift
        begin = self._next - self._first
        audio = self._audio[begin : begin + (count - 1) * shift + size]
        found = self._kind.extract(audio, self._within, self._num_filters)
        self._next += count * shift
        drop = max(0, min(self._next - size - self._first, len(self._audio)))
        self._audio = self._audio[drop:]
        self._first += drop
        return np.asarray(found, np.float32)

    def _none(self) -> NDArray[Any]:
        shape = [0, self._num_filters]
        if self._audio is not None and self._audio.ndim > 1:
            shape = [0, self._audio.shape[1], self._num_filters]
        return np.zeros(shape, np.float32)


class _Derivatives:
    """Appends derivatives over time: a frame waits for those after it on which they depend.

    ``_frames`` are those from `derivative_reach` and one frame before the next one on.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._frames: Optional[NDArray[Any]] = None
        self._done = 0  # how many of them have been returned

    def add(self, frames: NDArray[Any], is_end: bool) -> NDArray[Any]:
        """Return the frames that have what they need, with derivatives."""
        self._frames = frames if self._frames is None else np.concatenate([self._frames, frames])
        reach = derivative_reach()
        past = len(self._frames) - (0 if is_end else reach)
        if not is_end and (past <= self._done or len(self._frames) <= 2 * reach):
            return np.zeros([0, *frames.shape[1:-1], frames.shape[-1] * (self._most + 1)], np.float32)
        found = with_derivatives(self._frames, self._most)[self._done : past]
        drop = max(0, past - reach - 1)
        self._frames, self._done = self._frames[drop:], past - drop
        return found
