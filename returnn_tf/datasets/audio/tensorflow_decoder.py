"""Decoding by tensorflow-io, where the option ``decoder`` asks for it; TensorFlow is loaded for nothing else here."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.audio.packages import optional_package

#: The TensorFlow for which the last release of tensorflow-io was compiled; with others its library can't be loaded.
_RELEASE = "2.16"
#: Types of integers by the subtype in libsndfile, and by what they are divided; tensorflow-io fills up 24 bits to 32.
_INTEGERS = {"PCM_16": ("int16", 2.0**15), "PCM_24": ("int32", 2.0**31)}


def decode_by_tensorflow(content: bytes, kind: str, subtype: str, name: str) -> NDArray[Any]:
    """Return the samples of an audio file: float32 [time], or [time, channels] of more than one channel.

    The operation releases the interpreter, so that threads decode at the same time.

    :param content: of the file
    :param kind: the format in libsndfile, e.g. "FLAC"
    :param subtype: of the samples, e.g. "PCM_16"
    :param name: of the file, for errors
    :raises ConfigError: the decoder is not installed, is for another TensorFlow, or does not know the format
    """
    with optional_package("for the decoder 'tensorflow-io'", extra="tensorflow-io"):
        import tensorflow as tf
        import tensorflow_io as tfio
    if not tf.version.VERSION.startswith(_RELEASE + "."):
        raise ConfigError(
            "the decoder 'tensorflow-io' works with TensorFlow %s only, this is %s. Use the decoder 'soundfile'"
            % (_RELEASE, tf.version.VERSION)
        )
    dtype, scale = _INTEGERS.get(subtype, ("float32", 1.0))
    decoders: dict[tuple[str, bool], Callable[[bytes], Any]] = {
        ("FLAC", True): lambda content: tfio.audio.decode_flac(content, dtype=dtype),
        ("WAV", True): lambda content: tfio.audio.decode_wav(content, dtype=dtype),
        ("OGG", subtype == "VORBIS"): tfio.audio.decode_vorbis,
        ("MP3", True): tfio.audio.decode_mp3,
        ("MPEG", True): tfio.audio.decode_mp3,
    }
    decode = decoders.get((kind, True))
    if decode is None or (kind in ("FLAC", "WAV") and subtype not in (*_INTEGERS, "FLOAT")):
        raise ConfigError(
            "audio file %r: the decoder 'tensorflow-io' does not know %s with %s. Use the decoder 'soundfile'"
            % (name, kind, subtype)
        )
    try:
        samples: NDArray[Any] = decode(content).numpy().astype(np.float32) / np.float32(scale)
    except tf.errors.OpError as exc:
        raise DataError("audio file %r cannot be decoded: %s. Is it damaged?" % (name, exc.message)) from exc
    return samples[:, 0] if samples.shape[1] == 1 else samples
