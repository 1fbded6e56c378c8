"""``returnn-tf tool bliss-to-ogg-zip``: a Bliss corpus as a zip for OggZipDataset."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator

from returnn_tf.cli.data.corpus_list import Utterance, read_corpus
from returnn_tf.cli.data.durations import duration
from returnn_tf.cli.data.source import default_processes
from returnn_tf.cli.data.zip_writer import AudioEncoding, write_zip
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.ffmpeg import ArchivedAudio, ConvertedAudio, CopiedAudio, NoAudio
from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
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
        raise ConfigError("--output %r must end in .zip, as OggZipDataset expects it" % parsed.output)
    found = [_with_audio(each) for each in read_corpus(parsed.bliss, segments=parsed.subset_segment_file)]
    with _encoding(parsed) as encoding:
        count, seconds = write_zip(parsed.output, found, encoding, _threads(), append=True)
    print("wrote %s: %d sequences, %s" % (parsed.output, count, duration(seconds)))
    return 0


def _with_audio(utterance: Utterance) -> Utterance:
    """Return the utterance; if its audio is not where the corpus says, relative to the working directory."""
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
    """Yield what makes the audio files, with a folder for temporary ones."""
    converts = [parsed.ffmpeg_loglevel, parsed.ffmpeg_acodec, parsed.ffmpeg_resample, parsed.number_of_channels]
    if parsed.no_ogg or parsed.no_conversion:
        if parsed.sprint_cache and not parsed.no_ogg:
            raise ConfigError("--no_conversion: audio of --sprint_cache needs a conversion")
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
            raise ConfigError("--raw_sample_rate must be a multiple of --feat_sample_rate")
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
        raise DataError("%r can't be written: %s" % (output, exc.strerror or exc)) from exc
    with folder as temporary:
        yield kept if temporary is None else temporary.path
    if keep:
        print("the converted files are in %s" % kept)
