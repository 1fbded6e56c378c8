"""Which features sherpa-onnx computes, and whether they are those of the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError, shown
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.kinds import LOG_FLOOR, KaldiFbank
from returnn_tf.engine.data.audio_of_config import AudioOfConfig
from returnn_tf.util.lazy_tf import tf

_KIND = "kaldi_fbank"
#: What the logs of energies of samples as integers of 16 bits are higher than those of samples from -1 to 1. Where the
#: server computes the former, the floor, which is the same number, is lower in relation to the audio.
_SCALE = 30 * math.log(2)
#: The options of ``audio`` with which we compute what the server does.
_OPTIONS: dict[str, Any] = {
    "window_len": 0.025, "step_len": 0.01, "peak_normalization": False, "preemphasis": None, "with_delta": False,
    "join_frames": None, "pre_process": None, "post_process": None, "num_channels": None,
}  # fmt: skip


@dataclass(frozen=True)
class ServerFeatures:
    """What the server computes, and how the network's input follows from it.

    :param audio: computes the network's input in this program
    :param sample_rate: in Hz; the server converts other audio
    :param mean: subtracted from the features of the server, [] or [dim]
    :param deviation: divides the rest
    :param offset: of the server's logs of energies from ours
    """

    audio: AudioFeatures
    sample_rate: int
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    offset: float

    @classmethod
    def of(cls, config: Config, *, integers: bool) -> ServerFeatures:
        """Return them for the dataset to search, to evaluate or to train on that has features of audio.

        :param integers: whether the server takes samples as integers of 16 bits, not from -1 to 1
        :raises ConfigError: the server can't compute its features; says what to set
        """
        where = "export to sherpa-onnx"
        found = AudioOfConfig.find(config, None, where)
        faults = list(_faults(found))
        if faults:
            raise ExportError(
                "%s: the server computes 80 or another number of energies by Kaldi's formula from audio, but the "
                "dataset %r other features. Train with these options in its 'audio': %s."
                % (where, found.dataset, "; ".join(faults))
            )
        audio = found.features
        assert audio.opts.sample_rate is not None
        mean = np.asarray(0.0 if audio.mean is None else audio.mean, "float32")
        deviation = np.asarray(1.0 if audio.deviation is None else audio.deviation, "float32")
        return cls(audio, audio.opts.sample_rate, mean, deviation, _SCALE if integers else 0.0)

    def of_network(self, features: Any) -> Any:
        """Emit the input of the network for features of the server, [..., dim]."""
        return (tf.maximum(features - self.offset, LOG_FLOOR) - self.mean) / self.deviation

    def of_server(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return features of the server for an input of the network."""
        result: NDArray[np.float32] = (features * self.deviation + self.mean + self.offset).astype("float32")
        return result

    def possible(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return any numbers as inputs of the network: none below the least that audio has."""
        result: NDArray[Any] = np.maximum(features, (LOG_FLOOR - self.mean) / self.deviation).astype(features.dtype)
        return result


def _faults(found: AudioOfConfig) -> Iterator[str]:
    """Yield each option that has to be another one: what to set, and what it is."""
    audio, opts = found.features, found.features.opts
    if not isinstance(audio.kind, KaldiFbank):
        yield "'features': %r (not %s)" % (_KIND, shown(opts.features))
    elif audio.kind != KaldiFbank():
        yield "no 'feature_options' (not %s)" % shown(dict(opts.feature_options or {}))
    for name, wanted in _OPTIONS.items():
        value = getattr(opts, name)
        if value != wanted and (value or wanted) and not (name == "join_frames" and value == 1):
            yield "%r: %r (not %s)" % (name, wanted, shown(value))
    if opts.sample_rate is None:
        yield "'sample_rate': that of the audio in Hz"
    for name in ("norm_mean", "norm_std_dev"):
        if isinstance(getattr(opts, name), str) and getattr(opts, name) == "per_seq":
            yield "%r: a number or a file with a vector, or normalise in the network (not 'per_seq')" % name
    if found.window > 1:
        yield "'window': 1 (not %d)" % found.window
