"""Audio files from samples, by libsndfile."""

from __future__ import annotations

import io
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.audio.packages import optional_package

_BLOCK = 1 << 16  # the Vorbis encoder of some versions of libsndfile needs a stack that grows with what it gets at once


def encoded(samples: NDArray[Any], rate: int, container: str, codec: str, *, quality: Optional[float] = None) -> bytes:
    """Return the content of an audio file; samples beyond -1 to 1 are clipped.

    :param samples: [time] or [time, channels]
    :param rate: in Hz
    :param container: format in libsndfile, e.g. "OGG"
    :param codec: subtype in libsndfile, e.g. "VORBIS"
    :param quality: of a codec with losses, from 0 to 1; None: the default of the library
    :raises DataError: the codec does not take this rate or number of channels
    """
    with optional_package("to encode audio"):
        import soundfile
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    level = {} if quality is None else {"compression_level": 1 - quality}
    buffer = io.BytesIO()
    clipped = np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False)
    try:
        with soundfile.SoundFile(buffer, "w", rate, channels, codec, format=container, **level) as file:
            for start in range(0, len(clipped), _BLOCK):
                file.write(clipped[start : start + _BLOCK])
    except soundfile.LibsndfileError as exc:
        raise FileDataError("can't be encoded at %d Hz: %s" % (rate, exc)) from exc
    return buffer.getvalue()
