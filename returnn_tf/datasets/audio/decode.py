"""Audio files of any format that libsndfile knows: flac, ogg (Vorbis, Opus), wav, mp3, ..., as samples."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterator
from typing import Any, Union

from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.audio.packages import optional_package

#: What can be done about a file that cannot be decoded.
_FIX = "Is it damaged or cut off, or is it no audio? Make it again, or leave it out."


def read_audio(content: Union[bytes, str, os.PathLike[str]], *, name: str = "") -> tuple[NDArray[Any], int]:
    """Decode an audio file.

    :param content: of a file, or its path
    :param name: of the file, for errors; default: the path
    :return: (samples, sample rate in Hz). Samples are float64 [time], or [time, channels] of more than one channel:
        integers divided by 2 ** (bits - 1), thus from -1 to 1; floats as they are
    :raises DataError: the file is missing, damaged, cut off or no audio; names it
    """
    with optional_package("to decode audio"):
        import soundfile
    if not isinstance(content, bytes):
        path = os.fspath(content)
        name = name or path
        content = _read_file(path)
    try:
        with _as_file(content) as file, soundfile.SoundFile(file, closefd=False) as decoder:
            samples = decoder.read(dtype="float64")
            declared, rate = decoder.frames, decoder.samplerate
    except (soundfile.SoundFileError, RuntimeError, TypeError) as exc:
        raise DataError("audio file %r cannot be decoded: %s %s" % (name, _cause(exc), _FIX)) from exc
    missing = declared - len(samples) or _missing_wav_bytes(content)
    if missing:
        raise DataError(
            "audio file %r is incomplete: %d samples or bytes of it are missing. %s" % (name, missing, _FIX)
        )
    return samples, int(rate)


def _cause(exc: BaseException) -> str:
    """Return what libsndfile says, as a sentence, without the name of the object that it read from."""
    text = str(getattr(exc, "error_string", exc)).strip()
    return text if text.endswith(".") else text + "."


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise DataError("audio file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except OSError as exc:
        raise DataError("audio file %r cannot be read: %s" % (path, exc)) from exc


@functools.cache
def _has_memory_files() -> bool:
    return hasattr(os, "memfd_create")


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[Any]:
    """Return the content as what libsndfile can open, a file in memory where the system has these.

    It reads such a file itself, without calling back into Python, so that threads decode at the same time.
    """
    if not _has_memory_files():
        yield io.BytesIO(content)
        return
    descriptor = os.memfd_create("audio")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _missing_wav_bytes(content: bytes) -> int:
    """Return how many bytes a wav file lacks by its own account, which libsndfile does not compare; 0 for others.

    A program that writes to a pipe does not know the size, and leaves 0 or the largest number.
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return 0
    position = 12
    while position + 8 <= len(content):
        size = int.from_bytes(content[position + 4 : position + 8], "little")
        if content[position : position + 4] == b"data":
            return max(0, position + 8 + size - len(content)) if size < 2**31 - 64 else 0
        position += 8 + size + size % 2
    return 0
