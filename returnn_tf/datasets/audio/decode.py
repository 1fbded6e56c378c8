"""Audio files of any format that libsndfile knows: flac, ogg (Vorbis, Opus), wav, mp3, ..., as samples."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO, Callable, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.logging.log import log

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
        raise FileError(
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
        raise FileError(
            "audio file %r: the decoder 'tensorflow-io' does not know %s with %s. Use the decoder 'soundfile'"
            % (name, kind, subtype)
        )
    try:
        samples: NDArray[Any] = decode(content).numpy().astype(np.float32) / np.float32(scale)
    except tf.errors.OpError as exc:
        raise FileDataError("audio file %r cannot be decoded: %s. Is it damaged?" % (name, exc.message)) from exc
    return samples[:, 0] if samples.shape[1] == 1 else samples


#: The decoders. soundfile takes about a fifth of the time that tensorflow-io needs, also in threads against `tf.data`
#: (bench/audio_features.py), is ready at once, and knows more formats; so it is the default wherever it is installed.
DECODERS = ("soundfile", "tensorflow-io")

#: Subtypes in libsndfile with more than the 24 bits of single precision; what was compressed with a loss has fewer.
_DOUBLE = ("PCM_32", "DOUBLE", "ALAC_32")

#: Samples that are read at once: at 16 kHz a quarter of an hour.
_PART = 1 << 24

#: Sizes of a wav file from here on stand for an unknown one: 0x7ffff000, 0x7fffffff, 0xffffffff are in use.
WAV_SIZE_UNKNOWN = 0x7FFFF000

#: Advice for a file that cannot be decoded, and for one of another format.
_FIX = "Is it damaged or cut off, or is it no audio? Make it again, or leave it out."
_CONVERT = (
    "libsndfile reads wav, flac, ogg, opus, mp3, aiff and others, but not e.g. m4a, aac, wma or webm. Convert it: "
    "ffmpeg -i FILE file.wav; or leave it out, if it is no audio."
)
_UNKNOWN_FORMAT = 1  # SF_ERR_UNRECOGNISED_FORMAT

#: Samples of a frame of MPEG audio. With the delays of coders, a header may declare up to one more than are decoded.
_MPEG_FRAME = 1152


def read_audio(
    content: Union[bytes, str, os.PathLike[str]], *, name: str = "", decoder: str = "soundfile"
) -> tuple[NDArray[Any], int]:
    """Decode an audio file. May be called in several threads at once.

    :param content: of a file, or its path
    :param name: of the file, for errors; default: the path
    :param decoder: one of `DECODERS`
    :return: (samples, sample rate in Hz). Samples are [time], or [time, channels] of more than one channel:
        integers divided by 2 ** (bits - 1), thus from -1 to 1; floats as they are. They are float32 where that loses
        nothing, else float64
    :raises DataError: the file is missing, damaged, cut off or no audio; names it
    """
    name = name or ("(of %d bytes)" % len(content) if isinstance(content, bytes) else os.fspath(content))
    with optional_package("to decode audio"):
        import soundfile
    if not isinstance(content, bytes):
        content = _read_file(os.fspath(content))
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            declared, rate, is_mpeg = file.frames, file.samplerate, file.subtype.startswith("MPEG")
            if decoder == "soundfile":
                samples = _all_samples(file, "float64" if file.subtype in _DOUBLE else "float32")
            else:
                samples = decode_by_tensorflow(content, file.format, file.subtype, name)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as exc:
        fix = _CONVERT if content and getattr(exc, "code", None) == _UNKNOWN_FORMAT else _FIX
        raise FileDataError("audio file %r cannot be decoded: %s %s" % (name, _cause(exc), fix)) from exc
    missing = declared - len(samples)
    if is_mpeg and 0 < missing < _MPEG_FRAME:
        missing = 0
    missing = missing or missing_wav_bytes(io.BytesIO(content), name)
    if missing:
        raise FileDataError(
            "audio file %r is incomplete: samples or bytes of it are missing (%d). %s" % (name, missing, _FIX)
        )
    return samples, int(rate)


def _all_samples(file: Any, dtype: str) -> NDArray[Any]:
    """Read an open file in parts: a damaged header can declare more samples than memory holds."""
    parts = [file.read(_PART, dtype=dtype)]
    while len(parts[-1]) == _PART:
        parts.append(file.read(_PART, dtype=dtype))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _cause(exc: BaseException) -> str:
    """Return the message of libsndfile as a sentence, without the name of the object that it read from."""
    text = str(getattr(exc, "error_string", exc)).strip()
    return text if text.endswith(".") else text + "."


def _read_file(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        raise FileDataError("audio file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except OSError as exc:
        raise FileDataError("audio file %r cannot be read: %s" % (path, exc.strerror or exc)) from exc


def missing_wav_bytes(file: BinaryIO, name: str) -> int:
    """Return the number of bytes that a wav file lacks by its own header, which libsndfile ignores; 0 for others.

    A program that writes to a pipe does not know the size, and leaves 0 or about the largest number. That such a file
    may be cut off is logged, once per process.

    :param file: open at its beginning
    """
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return 0
    position = 12
    while position + 8 <= total:
        file.seek(position)
        chunk = file.read(8)
        size = int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"data":
            if size >= WAV_SIZE_UNKNOWN and total < position + 8 + size:
                _UnknownSizes.warn(name, size)
                return 0
            return max(0, position + 8 + size - total)
        position += 8 + size + size % 2
    return 0


class _UnknownSizes:
    """Whether this process has met a wav file without its size."""

    warned = False

    @classmethod
    def warn(cls, name: str, size: int) -> None:
        """Log the first one."""
        if not cls.warned:
            log.warn(
                "audio file %r claims %d bytes of samples, as programs write it that don't know the size, e.g. into a "
                "pipe. So neither this nor any other such file can be checked for completeness." % (name, size)
            )
        cls.warned = True
