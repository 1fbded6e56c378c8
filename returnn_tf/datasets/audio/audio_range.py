"""A part of an audio file, decoded without the rest."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.audio.decode import missing_wav_bytes, read_audio
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.safe_files import check_regular, open_regular

#: Seconds by which a part may end after the end of the file, since times in corpora are rounded.
_TOLERANCE = 0.1


def read_range(
    content: Union[str, bytes], start: float, end: Optional[float], *, name: str = ""
) -> tuple[NDArray[Any], int]:
    """Decode a part of an audio file.

    :param content: path of the file, or its content
    :param start: in seconds
    :param end: in seconds; None: the end of the file
    :param name: of the file, for errors; default: the path
    :return: (samples, sample rate), as `read_audio` does
    :raises DataError: the file is missing or damaged, or the part is outside of it
    """
    with optional_package("to decode audio"):
        import soundfile
    if isinstance(content, str):
        name = name or content
        _check(content)
    try:
        with soundfile.SoundFile(content if isinstance(content, str) else io.BytesIO(content)) as file:
            rate, total = int(file.samplerate), int(file.frames)
            first, last = _bounds(total, rate, start, end, name)
            file.seek(first)
            samples = file.read(last - first, dtype="float64")
        with _opened(content) as raw:
            cut_off = end is None and missing_wav_bytes(raw, name)
    except (soundfile.SoundFileError, RuntimeError, OSError) as exc:
        cause = exc if isinstance(content, str) else getattr(exc, "error_string", exc)  # which names an object
        raise FileDataError("audio file %r cannot be decoded: %s Is it damaged?" % (name, cause)) from exc
    if cut_off or len(samples) < last - first:
        raise FileDataError("audio file %r is incomplete: it ends within the segment from %g s on" % (name, start))
    return samples, rate


def read_part(
    content: Union[str, bytes], start: Optional[float], seconds: Optional[float], decoder: str, *, name: str
) -> tuple[NDArray[Any], int]:
    """Decode a part of an audio file, which is all of it if it is as long but for rounding.

    :param start: in seconds; None: the begin
    :param seconds: its duration; None: the rest
    :param decoder: for whole files, see `read_audio`
    :param name: of the file, for errors
    :raises DataError: the file is missing or damaged, or the part is outside of it
    """
    if start is not None:
        return read_range(content, start, None if seconds is None else start + seconds, name=name)
    samples, rate = read_audio(content, name=name, decoder=decoder)
    excess = 0.0 if seconds is None else len(samples) / rate - seconds
    if seconds is None or abs(excess) <= _TOLERANCE:
        return samples, rate
    if excess < 0:
        text = "audio file %r has %.3f s, but should have %g; is it cut off?"
        raise FileDataError(text % (name, len(samples) / rate, seconds))
    return samples[: round(seconds * rate)], rate


def part_of(samples: NDArray[Any], rate: int, start: float, end: Optional[float], name: str) -> NDArray[Any]:
    """Return a part of the samples of a whole file, see `read_range`."""
    first, last = _bounds(len(samples), rate, start, end, name)
    return samples[first:last]


def _bounds(total: int, rate: int, start: float, end: Optional[float], name: str) -> tuple[int, int]:
    """Return the first sample of a part, and that after its last one; DataError if it is outside of the file."""
    first, last = round(start * rate), total if end is None else round(end * rate)
    if first >= total or last > total + _TOLERANCE * rate:
        raise FileDataError(
            "audio file %r has %.3f s, but the segment is from %g to %s s"
            % (name, total / rate, start, "the end" if end is None else "%g" % end)
        )
    return first, min(last, total)


def channel_of(samples: NDArray[Any], track: int, name: str) -> NDArray[Any]:
    """Return the samples of a channel, from 0; of a file with one, all; DataError if there is no such channel."""
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    if track >= channels:
        text = "audio file %r has %d channel%s, but no track %d (they count from 0)"
        raise FileDataError(text % (name, channels, "" if channels == 1 else "s", track))
    return samples if samples.ndim == 1 else np.ascontiguousarray(samples[:, track])


def _opened(content: Union[str, bytes]) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else open_regular(content)


def duration(content: Union[str, bytes], *, name: str) -> float:
    """Return the duration of an audio file in seconds, from its header.

    :param content: path of the file, or its content
    :param name: of the file, for errors
    :raises DataError: it is missing or damaged
    """
    with optional_package("to decode audio"):
        import soundfile
    if isinstance(content, str):
        _check(content)
    try:
        return float(soundfile.info(content if isinstance(content, str) else io.BytesIO(content)).duration)
    except (soundfile.SoundFileError, RuntimeError, OSError) as exc:
        cause = exc if isinstance(content, str) else getattr(exc, "error_string", exc)  # which names an object
        raise FileDataError("audio file %r cannot be read: %s" % (name, cause)) from exc


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
