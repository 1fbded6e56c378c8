"""The audio of utterances as Ogg files: converted by ffmpeg, copied, or left out."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Optional

import numpy as np

from returnn_tf.cli.data.corpus_list import Utterance
from returnn_tf.config import DataError, did_you_mean
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.datasets.speech.audio_range import duration

_OGG = ".ogg"
_INT16 = 32768.0  # RASR has samples in the range of 16 bits
_MOST_SHOWN = 300
_COMPARED = 2000  # names, since comparing spellings takes long


@dataclass(frozen=True)
class NoAudio:
    """Leaves the audio out; the duration is that of the corpus.

    :param format: suffix in the names of the files
    """

    format: str = "ogg"
    reads_files: bool = False

    def encode(self, utterance: Utterance) -> tuple[Optional[bytes], float]:
        """Return None, and the seconds; 0 if the corpus does not say it."""
        return None, 0.0 if utterance.end is None else _seconds(utterance)


@dataclass(frozen=True)
class CopiedAudio:
    """Takes Ogg files as they are."""

    format: str = "ogg"
    reads_files: bool = True

    def encode(self, utterance: Utterance) -> tuple[Optional[bytes], float]:
        """Return the content of the file, and its seconds.

        :raises DataError: it is no Ogg file, or the segment begins within it
        """
        assert utterance.audio is not None
        if not utterance.audio.lower().endswith(_OGG):
            raise DataError("%s: %r is no .ogg file, so it needs a conversion" % (utterance.place, utterance.audio))
        if utterance.start:
            text = "%s: begins at %g s of %r, which needs a conversion"
            raise DataError(text % (utterance.place, utterance.start, utterance.audio))
        with _reading(utterance, utterance.audio), open_regular(utterance.audio) as file:
            content = file.read()
        return content, _seconds(utterance)


@dataclass(frozen=True)
class ConvertedAudio:
    """Lets ffmpeg cut and convert.

    :param folder: for the files it writes, numbered
    :param options: for the output, e.g. the codec
    :param loglevel: of ffmpeg, whose messages are shown; empty: only those of a failure
    :param keep: leave the files in the folder
    """

    folder: str
    options: Sequence[str] = ()
    loglevel: str = ""
    keep: bool = False
    format: str = "ogg"
    reads_files: bool = True
    program: str = field(default_factory=lambda: _ffmpeg())

    def encode(self, utterance: Utterance) -> tuple[Optional[bytes], float]:
        """Return the content of the Ogg file, and its seconds.

        :raises DataError: ffmpeg fails; with what it says
        """
        assert utterance.audio is not None
        with _reading(utterance, utterance.audio):
            os.stat(utterance.audio)
        part = [] if not utterance.start else ["-ss", str(utterance.start)]
        part += [] if utterance.end is None else ["-t", str(_seconds(utterance))]
        return self.convert(utterance, utterance.audio, part), _seconds(utterance)

    def convert(self, utterance: Utterance, path: str, part: Sequence[str] = ()) -> bytes:
        """Return the content of the Ogg file of a part of an audio file.

        :param part: options that cut it
        """
        output = os.path.join(self.folder, utterance.member.replace("/", "_") + _OGG)
        command = [self.program, "-hide_banner", "-nostdin", "-loglevel", self.loglevel or "error", "-y", "-i", path]
        command += [*part, *self.options, "-bitexact", "-f", "ogg", output]
        done = subprocess.run(command, capture_output=True, check=False)
        said = done.stderr.decode("utf8", "replace").strip()
        if done.returncode:
            text = "; ".join(said.splitlines())[-_MOST_SHOWN:] or "exit code %d" % done.returncode
            raise DataError("%s: ffmpeg can't convert %r: %s" % (utterance.place, path, text))
        if self.loglevel and said:
            print(said, file=sys.stderr)
        with open(output, "rb") as file:
            content = file.read()
        if not self.keep:
            os.remove(output)
        return content


@dataclass(frozen=True)
class ArchivedAudio:
    """Takes samples from an archive of RASR, whose frames are parts of the signal.

    :param path: of the archive, or of a bundle
    :param archive: the dataset of its features, by the names of the segments
    :param sample_rate: of the signal, Hz
    :param frame_rate: frames of the archive per second
    :param converted: encodes them
    """

    path: str
    archive: Dataset
    sample_rate: int
    frame_rate: int
    converted: ConvertedAudio
    format: str = "ogg"
    reads_files: bool = False

    def encode(self, utterance: Utterance) -> tuple[Optional[bytes], float]:
        """Return the content of the Ogg file, and its seconds.

        :raises DataError: the archive lacks the segment, or its frames have another size
        """
        if utterance.name not in self._indices:
            hint = did_you_mean(utterance.name, list(self._indices)[:_COMPARED])
            raise DataError("archive %r has no entry %r. %s" % (self.path, utterance.name, hint))
        vectors = self.archive.read(self._indices[utterance.name], 1, ["data"])["data"]
        size = self.sample_rate // self.frame_rate
        if not vectors.size or vectors.shape[1] != size:
            text = "archive %r, entry %r: has frames %s, but %d Hz and %d frames per second need %d samples in each"
            shape = list(vectors.shape)
            raise DataError(text % (self.path, utterance.name, shape, self.sample_rate, self.frame_rate, size))
        samples = vectors.reshape(-1).astype(np.float64)
        if np.abs(samples).max() > 1:
            samples = samples / _INT16
        with optional_package("to write audio"):
            import soundfile
        path = os.path.join(self.converted.folder, utterance.member.replace("/", "_") + ".wav")
        soundfile.write(path, samples, self.sample_rate, subtype="PCM_16")
        try:
            return self.converted.convert(utterance, path), len(samples) / self.sample_rate
        finally:
            os.remove(path)

    @functools.cached_property
    def _indices(self) -> dict[str, int]:
        """Return where the segments are in the dataset, by name."""
        return {self.archive.tag(index): index for index in range(self.archive.num_seqs or 0)}


def _ffmpeg() -> str:
    """Return the path of the program.

    :raises DataError: it is not installed
    """
    path = shutil.which("ffmpeg", path=os.environ.get("PATH") or os.defpath)
    if path is None:
        raise DataError(
            "ffmpeg is not installed. Install it, or give --no_conversion for .ogg files, or use returnn-tf data oggzip"
        )
    return path


def _seconds(utterance: Utterance) -> float:
    """Return the duration that the corpus says, without rounding errors of differences; else that of the file."""
    if utterance.end is None:
        assert utterance.audio is not None
        return duration(utterance.audio) - utterance.start
    return float(Decimal(str(utterance.end)) - Decimal(str(utterance.start)))


@contextlib.contextmanager
def _reading(utterance: Utterance, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise DataError("%s: %r can't be read: %s" % (utterance.place, path, exc.strerror or exc)) from exc
