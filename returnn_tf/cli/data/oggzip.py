"""``returnn-tf data oggzip TABLE --output OUT.zip``: makes a corpus for OggZipDataset."""

from __future__ import annotations

import argparse
import os

from returnn_tf.cli.data import source
from returnn_tf.cli.data.audio_files import FORMATS, Encoding
from returnn_tf.cli.data.corpus_list import OWN_COLUMNS, read_corpus
from returnn_tf.cli.data.durations import duration
from returnn_tf.cli.data.zip_writer import write_zip
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import FileDataError, FileError

_DOC = """
Make a zip of audio files and their transcriptions, which OggZipDataset reads.

    returnn-tf data oggzip utterances.tsv --output train.zip
    returnn-tf data oggzip utterances.csv --output train.zip --sample-rate 16000 --audio-root recordings
    returnn-tf data oggzip corpus.xml.gz --output train.zip --segments train.segments

The table has a line of column names, separated by tabs (.tsv, .txt) or commas (.csv):
    file         the audio file: wav, flac, ogg, mp3, ...; relative to the folder of the table, or to --audio-root
    text         the transcription
    seq_name     the tag of the sequence; default: the name of the file, with the times if there are any
    start, end   of the part of the file, in seconds (optional)
If they are called otherwise: --columns file=wav,text=transcript. Further columns, e.g. speaker_name, are kept in the
zip. Instead of a table there may be a Bliss corpus (XML).
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("data oggzip", _DOC)
    result.add_argument("corpus", metavar="TABLE", help="a table (.tsv, .csv), or a Bliss corpus (.xml, .xml.gz)")
    result.add_argument("--output", metavar="OUT.zip", required=True, help="the file to write")
    result.add_argument("--replace", action="store_true", help="replace an existing file")
    result.add_argument("--audio-root", metavar="DIR", help="folder of the audio files")
    result.add_argument(
        "--columns", metavar="OURS=YOURS,...", type=_columns, help="names of columns, e.g. file=wav,text=transcript"
    )
    result.add_argument("--segments", metavar="FILE", help="only these sequences: one tag per line, .gz allowed")
    result.add_argument("--sample-rate", metavar="HZ", type=positive, help="convert all audio to this rate")
    result.add_argument(
        "--format", choices=FORMATS, default="ogg", help="ogg (Vorbis, default), flac (lossless, larger), wav"
    )
    result.add_argument("--quality", metavar="Q", type=_fraction, help="of ogg, from 0 to 1; default about 0.4")
    result.add_argument("--no-audio", action="store_true", help="only the texts, with the duration 0")
    result.add_argument("--threads", metavar="N", type=positive, help="default: one per CPU, at most 8")
    return result


def _columns(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    found = {ours.strip(): yours.strip() for ours, _, yours in pairs}
    for ours, yours in found.items():
        if ours not in OWN_COLUMNS or not yours:
            raise argparse.ArgumentTypeError(
                "%r must be like file=wav,text=transcript, with some of %s before the ="
                % (text, ", ".join(OWN_COLUMNS))
            )
    if len(found) < len(pairs) or len(set(found.values())) < len(pairs):
        raise argparse.ArgumentTypeError("%r names a column twice" % text)
    return found


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def run(args: list[str]) -> int:
    """Write the zip.

    :raises DataError: an audio file or an entry of the corpus is wrong; names it
    """
    parsed = parser().parse_args(args)
    if not parsed.output.endswith(".zip"):
        raise FileError("data oggzip: --output %r must end in .zip, as OggZipDataset expects it" % parsed.output)
    if os.path.exists(parsed.output) and not parsed.replace:
        raise FileDataError("%r exists already; add --replace, or choose another --output" % parsed.output)
    utterances = read_corpus(
        parsed.corpus, audio_root=parsed.audio_root, segments=parsed.segments, columns=parsed.columns
    )
    encoding = None if parsed.no_audio else Encoding(parsed.format, parsed.sample_rate, parsed.quality)
    count, seconds = write_zip(parsed.output, utterances, encoding, parsed.threads or source.default_processes())
    print("wrote %s: %d sequences, %s" % (parsed.output, count, duration(seconds)))
    return 0
