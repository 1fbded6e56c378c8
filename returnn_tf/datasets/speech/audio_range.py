"""A part of an audio file, decoded without the rest."""

from __future__ import annotations

import os
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.audio.decode import missing_wav_bytes
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.safe_files import check_regular, open_regular

#: Seconds by which a part may end after the end of the file, since times in corpora are rounded.
_TOLERANCE = 0.1


def read_range(path: str, start: float, end: Optional[float]) -> tuple[NDArray[Any], int]:
    """Decode a part of an audio file.

    :param start: in seconds
    :param end: in seconds; None: the end of the file
    :return: (samples, sample rate), as `read_audio` does
    :raises DataError: the file is missing or damaged, or the part is outside of it
    """
    with optional_package("to decode audio"):
        import soundfile
    _check(path)
    try:
        with soundfile.SoundFile(path) as file:
            rate, total = int(file.samplerate), int(file.frames)
            first, last = round(start * rate), total if end is None else round(end * rate)
            if first >= total or last > total + _TOLERANCE * rate:
                raise FileDataError(
                    "audio file %r has %.3f s, but the segment is from %g to %s s"
                    % (path, total / rate, start, "the end" if end is None else "%g" % end)
                )
            file.seek(first)
            samples = file.read(min(last, total) - first, dtype="float64")
        with open_regular(path) as content:
            cut_off = end is None and missing_wav_bytes(content, path)
    except (soundfile.SoundFileError, RuntimeError, OSError) as exc:
        raise FileDataError("audio file %r cannot be decoded: %s Is it damaged?" % (path, exc)) from exc
    if cut_off or len(samples) < min(last, total) - first:
        raise FileDataError("audio file %r is incomplete: it ends within the segment from %g s on" % (path, start))
    return samples, rate


def duration(path: str) -> float:
    """Return the duration of an audio file in seconds, from its header.

    :raises DataError: it is missing or damaged
    """
    with optional_package("to decode audio"):
        import soundfile
    _check(path)
    try:
        return float(soundfile.info(path).duration)
    except (soundfile.SoundFileError, RuntimeError, OSError) as exc:
        raise FileDataError("audio file %r cannot be read: %s" % (path, exc)) from exc


def _check(path: str) -> None:
    """Check that the file exists and that reading it can't block forever.

    :raises DataError: otherwise
    """
    try:
        check_regular(path)
    except FileNotFoundError:
        raise FileDataError("audio file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except OSError as exc:
        raise FileDataError("audio file %r cannot be read: %s" % (path, exc.strerror or exc)) from exc
