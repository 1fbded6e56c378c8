"""``returnn-tf tool bliss-to-ogg-zip``: a Bliss corpus as a zip for OggZipDataset, its audio converted by ffmpeg."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Optional

import numpy as np

from returnn_tf.cli.data.corpus_list import Utterance, read_corpus
from returnn_tf.cli.data.durations import duration
from returnn_tf.cli.data.source import default_processes
from returnn_tf.cli.data.zip_writer import AudioEncoding, write_zip
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.config.errors import CommandDataError, CommandError, did_you_mean
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.audio import audio_range
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.logging.log import log
from returnn_tf.util.temporary import Temporary

_DOC = """
Make a zip of the audio and the transcriptions of a Bliss corpus, which OggZipDataset reads.

    returnn-tf tool bliss-to-ogg-zip corpus.xml.gz --output train.zip
    returnn-tf tool bliss-to-ogg-zip corpus.xml.gz --output part1.zip --subset_segment_file segments.1

Audio is cut and converted by ffmpeg; as many at a time as $OMP_NUM_THREADS says, else as there are CPUs. An existing
zip is extended. Without ffmpeg, use returnn-tf data oggzip, which also reads tables.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool bliss-to-ogg-zip", _DOC)
    add = result.add_argument
    add("bliss", metavar="BLISS", help="the corpus, .gz allowed")
    add("--output", metavar="X.zip", required=True, help="the zip: X.txt, and audio below X/")
    add("--subset_segment_file", metavar="FILE", help="only these segments, a name a line")
    add("--no_ogg", action="store_true", help="without audio")
    add("--no_conversion", action="store_true", help="copy the audio: whole .ogg files")
    add("--no_cleanup", action="store_true", help="keep the folder of converted files, and print its name")
    add("--sprint_cache", metavar="FILE", help="archive of RASR with the audio, or a bundle of them")
    add("--raw_sample_rate", metavar="HZ", type=positive, default=8000, help="of the archive (8000)")
    add("--feat_sample_rate", metavar="HZ", type=positive, default=100, help="frames of the archive per second (100)")
    add("--ffmpeg_loglevel", metavar="LEVEL", default="", help="show what ffmpeg says; default: if it fails")
    add("--ffmpeg_acodec", metavar="CODEC", help="of the audio, e.g. libvorbis")
    add("--ffmpeg_resample", metavar="HZ", type=positive, help="convert the audio to this sample rate")
    add("--number_of_channels", metavar="N", type=positive, help="convert the audio to this number of channels")
    return result


@register_tool("bliss-to-ogg-zip", parser)
def run(args: list[str]) -> int:
    """Write the zip.

    :param args: the arguments of the tool
    :raises DataError: the corpus is damaged, lacks a segment, or audio of it can't be converted
    """
    parsed = parser().parse_args(args)
    if not parsed.output.endswith(".zip"):
        raise CommandError("--output %r must end in .zip, as OggZipDataset expects it" % parsed.output)
    found = [_with_audio(each) for each in read_corpus(parsed.bliss, segments=parsed.subset_segment_file)]
    with _encoding(parsed) as encoding:
        count, seconds = write_zip(parsed.output, found, encoding, _threads(), append=True)
    print("wrote %s: %d sequences, %s" % (parsed.output, count, duration(seconds)))
    return 0


def _with_audio(utterance: Utterance) -> Utterance:
    """Return the utterance, its audio relative to the working directory if missing at the place the corpus names."""
    path = utterance.audio
    if path is None or os.path.isabs(path) or os.path.exists(path) or utterance.relative_audio is None:
        return utterance
    exists = os.path.exists(utterance.relative_audio)
    return dataclasses.replace(utterance, audio=utterance.relative_audio) if exists else utterance


def _threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else default_processes()


@contextlib.contextmanager
def _encoding(parsed: argparse.Namespace) -> Iterator[AudioEncoding]:
    """Yield the encoder of the audio files, with a folder for temporary ones."""
    converts = [parsed.ffmpeg_loglevel, parsed.ffmpeg_acodec, parsed.ffmpeg_resample, parsed.number_of_channels]
    if parsed.no_ogg or parsed.no_conversion:
        if parsed.sprint_cache and not parsed.no_ogg:
            raise CommandError("--no_conversion: audio of --sprint_cache needs a conversion")
        if any(converts) or parsed.no_cleanup:
            log.warn("Nothing is converted, so options for ffmpeg and --no_cleanup have no effect.")
        yield NoAudio() if parsed.no_ogg else CopiedAudio()
        return
    options = ["-acodec", parsed.ffmpeg_acodec] if parsed.ffmpeg_acodec else []
    options += ["-ar", str(parsed.ffmpeg_resample)] if parsed.ffmpeg_resample else []
    options += ["-ac", str(parsed.number_of_channels)] if parsed.number_of_channels else []
    with _folder(parsed.output, keep=parsed.no_cleanup) as folder:
        converted = ConvertedAudio(folder, options, parsed.ffmpeg_loglevel, keep=parsed.no_cleanup)
        if not parsed.sprint_cache:
            yield converted
            return
        if parsed.raw_sample_rate % parsed.feat_sample_rate:
            raise CommandError("--raw_sample_rate must be a multiple of --feat_sample_rate")
        features = {"filename": parsed.sprint_cache, "data_type": "feat"}
        archive = Dataset.from_config({"class": "SprintCacheDataset", "data": {"data": features}})
        yield ArchivedAudio(parsed.sprint_cache, archive, parsed.raw_sample_rate, parsed.feat_sample_rate, converted)


@contextlib.contextmanager
def _folder(output: str, *, keep: bool) -> Iterator[str]:
    """Provide a folder beside the output, which is removed at the end unless it is to be kept."""
    beside, name = os.path.split(os.path.abspath(output))
    try:
        os.makedirs(beside, exist_ok=True)
        kept = tempfile.mkdtemp(prefix=".%s.audio-" % name, dir=beside) if keep else ""
        folder = contextlib.nullcontext() if keep else Temporary(output, folder=True)
    except OSError as exc:
        raise CommandDataError("%r can't be written: %s" % (output, exc.strerror or exc)) from exc
    with folder as temporary:
        yield kept if temporary is None else temporary.path
    if keep:
        print("the converted files are in %s" % kept)


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
            raise CommandDataError(
                "%s: %r is no .ogg file, so it needs a conversion" % (utterance.place, utterance.audio)
            )
        if utterance.start:
            text = "%s: begins at %g s of %r, which needs a conversion"
            raise CommandDataError(text % (utterance.place, utterance.start, utterance.audio))
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
            raise CommandDataError("%s: ffmpeg can't convert %r: %s" % (utterance.place, path, text))
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
            raise CommandDataError("archive %r has no entry %r. %s" % (self.path, utterance.name, hint))
        vectors = self.archive.read(self._indices[utterance.name], 1, ["data"])["data"]
        size = self.sample_rate // self.frame_rate
        if not vectors.size or vectors.shape[1] != size:
            text = "archive %r, entry %r: has frames %s, but %d Hz and %d frames per second need %d samples in each"
            shape = list(vectors.shape)
            raise CommandDataError(text % (self.path, utterance.name, shape, self.sample_rate, self.frame_rate, size))
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
        """Return the indices of the segments in the dataset, by name."""
        return {self.archive.tag(index): index for index in range(self.archive.num_seqs or 0)}


def _ffmpeg() -> str:
    """Return the path of the program.

    :raises DataError: it is not installed
    """
    path = shutil.which("ffmpeg", path=os.environ.get("PATH") or os.defpath)
    if path is None:
        raise CommandDataError(
            "ffmpeg is not installed. Install it, or give --no_conversion for .ogg files, or use returnn-tf data oggzip"
        )
    return path


def _seconds(utterance: Utterance) -> float:
    """Return the duration by the corpus, without rounding errors of differences; else that of the file."""
    if utterance.end is None:
        assert utterance.audio is not None
        return audio_range.duration(utterance.audio, name=utterance.audio) - utterance.start
    return float(Decimal(str(utterance.end)) - Decimal(str(utterance.start)))


@contextlib.contextmanager
def _reading(utterance: Utterance, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise CommandDataError("%s: %r can't be read: %s" % (utterance.place, path, exc.strerror or exc)) from exc
