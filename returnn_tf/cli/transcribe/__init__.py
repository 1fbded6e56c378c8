"""``returnn-tf transcribe MODEL AUDIO ...``: the text of audio files, by a trained model."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.runs.config import in_folder
from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.cli.transcribe.audio import MIX, AudioReader, channel, rate_of_training, warn_of_rate
from returnn_tf.cli.transcribe.files import audio_files
from returnn_tf.cli.transcribe.job import File, Job
from returnn_tf.cli.transcribe.model import BEST, ChosenModel, epoch, find_model
from returnn_tf.cli.transcribe.recogniser import Recogniser
from returnn_tf.config.errors import CommandError, DataError
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.engine.transcripts.formats.base import FORMATS, Format
from returnn_tf.engine.transcripts.transcript import Transcript, text
from returnn_tf.logging.levels import SCORE_LEVEL, WARNING_LEVEL
from returnn_tf.logging.log import log

_DOC = """
Write what is said in audio files, as a trained model recognises it. Texts come on the standard output in the order of
the files, each as soon as it and those before it are there; of several files, behind the name of the file and a tab.

    returnn-tf transcribe out/model a.wav b.flac            the newest checkpoint, the search of the config
    returnn-tf transcribe out/model files.txt --json        a path in each line; JSON lines with scores and times
    find . -name '*.ogg' | returnn-tf transcribe out/model - --epoch best --ctm > words.ctm
    returnn-tf transcribe out/model talk.wav --segment 30 --srt > talk.srt
    returnn-tf transcribe my.config a.wav --layer ctc       the best path of this output of CTC
    returnn-tf transcribe out/model a.wav --lexicon words.txt --lm words.arpa --hot-words names.txt

The model is a folder or prefix of checkpoints, one checkpoint, or a config. Features, vocabulary, search and sizes of
batches are those of its config. A file that can't be read is told in a line of its own, the others are recognised, and
the exit code is 1.
"""
#: Options with files of task decode, each a setting ``decode_...``.
_FILES = {"lexicon": "the words that there are", "lm": "n-gram model", "hot-words": "words that are expected"}
_SHORTEST = 1.0  # seconds of a part


@register_command(
    "transcribe",
    "MODEL AUDIO|LIST.txt|- ... [--json | --ctm | --srt | --format NAME] [--epoch N|best] [++key value ...]",
    "write what is said in audio files",
    own_help=lambda _: _parser().format_help(),
    group="use",
)
def run(args: list[str]) -> int:
    """Transcribe audio files.

    :param args: model, files, options, ``++key value`` for the config
    :return: exit code: 1 if a file could not be read or recognised
    :raises ConfigError: wrong arguments; no such model or config; features that can't be made from audio
    :raises DataError: a file of the model is damaged; a list names nothing
    """
    first = next((index for index, word in enumerate(args) if word.startswith("++")), len(args))
    given, overrides = _parser().parse_intermixed_args(args[:first]), args[first:]
    if given.nbest > 1 and given.segment:
        raise CommandError("transcribe: --nbest and --segment exclude each other: parts have no hypotheses in common")
    files = audio_files(given.audio)
    form = _format(given.format, many=len(files) > 1)
    if given.nbest > 1 and not form.has_all:
        several = ", ".join("--format %s" % name for name, each in FORMATS.items() if each.has_all)
        raise CommandError("transcribe: --nbest %d: only %s have more than the best one" % (given.nbest, several))
    if form.of_one and len(files) > 1 and given.output is None:
        message = (
            "transcribe: --format %s holds one transcript, but there are %d files. --output FOLDER writes one for each"
        )
        raise CommandError(message % (given.format, len(files)))
    if given.output is not None and os.path.exists(given.output) and not os.path.isdir(given.output):
        raise CommandError("transcribe: --output %r is a file, but must be a folder" % given.output)
    tags = _tags(files, given.output)
    paths = [os.path.abspath(path) for path in files]
    target = None if given.output is None else os.path.abspath(given.output)
    with log.on_stderr(WARNING_LEVEL):
        model = find_model(given.model, "transcribe", config=given.config, epoch=given.epoch, overrides=overrides)
        model.config.update(_settings(given))
        with log.at_level(log_level(model, overrides)), in_folder(model.folder):
            recogniser = Recogniser(model.config, layer=given.layer, data=given.data)
            if form.needs_times and recogniser.source.without_times:
                message = "transcribe: --format %s needs times, but %s. Or choose another format, e.g. --json"
                raise CommandError(message % (given.format, recogniser.source.without_times))
            if given.nbest > 1 and not recogniser.source.has_several:
                raise CommandError(
                    "transcribe: --nbest %d: this layer has the labels of one hypothesis. Name one with a beam, or "
                    "with posteriors of CTC: --layer NAME" % given.nbest
                )
            reader = _reader(given, recogniser)
            job = Job(recogniser, reader, [File(*each) for each in zip(files, paths, tags)], given.nbest)
            _write(job, form, target)
            log.write(SCORE_LEVEL, job.summary())
    return 1 if job.failed else 0


def _parser() -> CommandParser:
    parser = CommandParser("transcribe", _DOC)
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder or prefix of checkpoints, one checkpoint, or a config")
    add("audio", metavar="AUDIO", nargs="+", help="audio files; lists of them (.txt, .list, .lst); -: names on stdin")
    names = ", ".join(name for name, _ in FORMATS.items())
    add("--format", metavar="NAME", choices=FORMATS.names(), help="of the output: %s" % names)
    for flag, name in (("--json", "jsonl"), ("--ctm", "ctm"), ("--srt", "srt")):
        add(flag, dest="format", action="store_const", const=name, help="the same as --format %s" % name)
    add("--output", metavar="FOLDER", help="write a file for each audio file into this folder instead")
    add(
        "--nbest",
        metavar="N",
        type=positive,
        default=1,
        help="hypotheses of each file, in --json and --format nbest (1)",
    )
    add("--epoch", metavar="N", type=epoch, help="of the checkpoint, or %r; default: the newest one" % BEST)
    add("--config", metavar="FILE", help="the config of the model, if it is not where it was at the training")
    add("--layer", metavar="NAME", help="the layer with the labels, or with posteriors of CTC; default: of task search")
    for flag, what in _FILES.items():
        add("--" + flag, metavar="FILE", help="%s (as of returnn-tf decode)" % what)
    add("--data", metavar="NAME", help="the dataset whose features are computed; default: the one to search")
    add("--channel", metavar="N", type=channel, help="of audio with several: its number from 0, or %r" % MIX)
    add("--sample-rate", metavar="HZ", type=positive, help="of the training data, if the config does not say it")
    add("--resample", action="store_true", help="convert audio of another sample rate")
    add("--segment", metavar="SECONDS", type=_seconds, help="cut longer audio at pauses into parts of at most this")
    return parser


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of decoding that options replace."""
    names = {"decode_" + flag.replace("-", "_"): getattr(given, flag.replace("-", "_")) for flag in _FILES}
    settings: dict[str, Any] = {name: os.path.abspath(path) for name, path in names.items() if path is not None}
    return {**settings, **({"decode_nbest": given.nbest} if given.nbest > 1 else {})}


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise argparse.ArgumentTypeError("expected a number of seconds, not %r" % value) from None
    if not _SHORTEST <= seconds < float("inf"):
        raise argparse.ArgumentTypeError("expected %g seconds or more, not %r" % (_SHORTEST, value))
    return seconds


def log_level(model: ChosenModel, overrides: Sequence[str]) -> int:
    """Return up to which level the log is shown: warnings, unless the command line has ``++log_verbosity``."""
    levels = LoggingSettings(model.config).log_verbosity
    asked = any(key == "log_verbosity" for key, _ in parse_arguments(["none.config", *overrides]).overrides)
    return levels[-1] if levels and asked else WARNING_LEVEL


def _reader(given: argparse.Namespace, recogniser: Recogniser) -> AudioReader:
    features = recogniser.audio.features
    rate = rate_of_training(features, given.sample_rate, "transcribe")
    if rate is None and given.resample:
        raise CommandError(
            "transcribe: --resample: to which rate? The config does not say that of the training data (option "
            "sample_rate of audio). Give it: --sample-rate HZ"
        )
    if rate is None:
        warn_of_rate()
    return AudioReader(features, rate, given.resample, given.channel, given.segment)


def _tags(files: Sequence[str], output: Optional[str]) -> list[str]:
    """Return the tags of the files: their paths, or in a folder with a file for each their names without suffix."""
    if output is None:
        return list(files)
    tags = [os.path.splitext(os.path.basename(path))[0] for path in files]
    seen: dict[str, str] = {}
    for tag, path in zip(tags, files):
        if tag in seen:
            raise CommandError(
                "transcribe: --output: %r and %r would be written to files of the same name" % (seen[tag], path)
            )
        seen[tag] = path
    return tags


def _format(name: Optional[str], *, many: bool) -> Format:
    """Return the format of the output; by default texts, of several files behind their tags."""
    if name is not None or not many:
        return FORMATS[name or "txt"]
    return Format(_named_text, "a line each: file, tab, text", ".txt")


def _named_text(transcript: Transcript) -> Iterator[str]:
    yield "%s\t%s\n" % (transcript.tag, text(transcript.best))


def _write(job: Job, form: Format, folder: Optional[str]) -> None:
    """Write the transcripts as they come; one that the format can't express counts as failed."""
    with contextlib.closing(job.transcripts()) as transcripts:
        for transcript in transcripts:
            try:
                "".join(form.lines(transcript))
            except DataError as exc:
                job.fail(transcript.tag, exc)
                continue
            if folder is None:
                form.write([transcript], sys.stdout)
            else:
                form.write_files([transcript], folder)
