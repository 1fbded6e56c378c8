"""A wav file that is read while it is written, e.g. from a pipe; its size need not be known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.audio.decode import WAV_SIZE_UNKNOWN

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
#: Format and bits of a sample -> its type, and by what it is divided.
_SAMPLES = {
    (_PCM, 8): ("u1", 2.0**7), (_PCM, 16): ("<i2", 2.0**15), (_PCM, 24): ("<i4", 2.0**31), (_PCM, 32): ("<i4", 2.0**31),
    (_FLOAT, 32): ("<f4", 1.0), (_FLOAT, 64): ("<f8", 1.0),
}  # fmt: skip
_CONVERT = "ffmpeg -i FILE -f wav - makes one of any audio"
_LONGEST_CHUNK = 1 << 24  # bytes before the samples


class WavStream:
    """Reads samples as they come.

    :param file: at its beginning
    :param name: of it, for errors
    :raises DataError: it is no wav file, or has samples of another kind
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        if self._exactly(4) != b"RIFF" or self._exactly(8)[4:] != b"WAVE":
            raise FileDataError("%r is no wav file (RIFF). %s" % (name, _CONVERT))
        #: In Hz.
        self.sample_rate = 0
        #: Of each moment.
        self.channels = 0
        while True:
            kind, size = self._exactly(4), int.from_bytes(self._exactly(4), "little")
            if kind == b"data":
                break
            if size > _LONGEST_CHUNK:
                raise FileDataError("wav file %r is damaged: a chunk %r of %d bytes" % (name, kind, size))
            content = self._exactly(size + size % 2)
            if kind == b"fmt ":
                self._read_format(content)
        if not self.sample_rate:
            raise FileDataError("wav file %r is damaged: the samples come before their format" % name)
        # programs that write into a pipe leave 0 or about the largest number
        self._size: Optional[int] = None if size == 0 or size >= WAV_SIZE_UNKNOWN else size

    def _read_format(self, content: bytes) -> None:
        if len(content) < 16:
            raise FileDataError("wav file %r is damaged: its format has %d bytes" % (self._name, len(content)))
        number = [int.from_bytes(content[place : place + size], "little") for place, size in _FIELDS]
        kind, self.channels, self.sample_rate, self._bits = number
        if kind == _EXTENSIBLE and len(content) >= 26:
            kind = int.from_bytes(content[24:26], "little")
        if (kind, self._bits) not in _SAMPLES:
            raise FileDataError(
                "wav file %r has samples of kind %d with %d bits, but only integers and floats are read. %s"
                % (self._name, kind, self._bits, _CONVERT)
            )
        if not self.channels or not self.sample_rate:
            raise FileDataError(
                "wav file %r is damaged: %d channels, %d Hz" % (self._name, self.channels, self.sample_rate)
            )
        self._dtype, self._scale = _SAMPLES[kind, self._bits]

    def blocks(self, seconds: float) -> Iterator[NDArray[Any]]:
        """Yield samples as soon as they are there: [time], or [time, channels] of more than one channel.

        :param seconds: of a block at most
        :raises DataError: the file ends within a sample, or before its end by its own header; after all that is there
        """
        width = self._bits // 8 * self.channels
        most = max(1, round(seconds * self.sample_rate)) * width
        rest, read = b"", 0
        while self._size is None or read < self._size:
            wanted = most - len(rest) if self._size is None else min(most - len(rest), self._size - read)
            content = self._read(wanted)
            if not content:
                break
            read += len(content)
            content = rest + content
            complete = len(content) // width * width
            rest = content[complete:]
            if complete:
                yield self._samples(content[:complete])
        missing = 0 if self._size is None else self._size - read
        if missing:
            raise FileDataError(
                "wav file %r is incomplete: %d bytes of samples are missing. What is there was recognised"
                % (self._name, missing)
            )
        if rest:
            raise FileDataError(
                "wav file %r ends within a sample: %d of its %d bytes. What is there was recognised"
                % (self._name, len(rest), width)
            )

    def _samples(self, content: bytes) -> NDArray[Any]:
        if self._bits == 24:  # as the upper ones of 32
            parts = np.zeros((len(content) // 3, 4), np.uint8)
            parts[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
            content = parts.tobytes()
        values = np.frombuffer(content, self._dtype)
        precision = np.float64 if self._bits == 64 or (self._bits == 32 and self._dtype == "<i4") else np.float32
        samples: NDArray[Any] = values.astype(precision)
        if self._dtype == "u1":
            samples -= 128
        samples /= self._scale
        return samples if self.channels == 1 else samples.reshape(-1, self.channels)

    def _read(self, size: int) -> bytes:
        """Return at most so many bytes, as soon as there are any; none at the end."""
        read = getattr(self._file, "read1", self._file.read)
        return bytes(read(size))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._read(size - len(found))
            if not more:
                raise FileDataError(
                    "%r ends within its first %d bytes, before any sample. %s"
                    % (self._name, len(found) + 1, "Is it a wav file?")
                )
            found += more
        return found


#: Place and bytes of format, channels, rate, and bits in the chunk of the format.
_FIELDS = ((0, 2), (2, 2), (4, 4), (14, 2))
