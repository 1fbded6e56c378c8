"""``returnn-tf listen MODEL --wav -|FILE``: the text of audio while it comes, by a trained model."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.listen.listener import Listener, StreamingRecogniser, Update
from returnn_tf.cli.listen.wav import WavStream
from returnn_tf.cli.runs.config import in_folder
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.cli.transcribe import log_level
from returnn_tf.cli.transcribe.audio import MIX, AudioReader, channel, rate_of_training, warn_of_rate
from returnn_tf.cli.transcribe.model import BEST, epoch, find_model
from returnn_tf.config.errors import CommandError, DataError, FileDataError, StepError
from returnn_tf.datasets.audio.stream import lookahead_seconds
from returnn_tf.engine.transcripts.formats.base import FORMATS, Format
from returnn_tf.logging.levels import SCORE_LEVEL, WARNING_LEVEL
from returnn_tf.logging.log import log
from returnn_tf.logging.text import is_terminal, printable

_DOC = """
Write what is said while it is said: features, network and search, of CTC or of a transducer, go on from block to block
of audio. The words are those of returnn-tf transcribe for the same audio.

    arecord -q -f S16_LE -r 16000 | returnn-tf listen out/model --wav - --pause 1
    ffmpeg -loglevel error -i URL -ar 16000 -ac 1 -f wav - | returnn-tf listen out/model --wav - --json --partial
    returnn-tf listen out/model --wav a.wav --realtime          a file, as fast as it was spoken

Layers may look back, not ahead: LSTMs from left to right, attention to the left, layers that work by chunks (--block).
Features must not need all of the audio: peak_normalization = False, and means of the training data instead of
"per_seq". Behind the last line of text the log tells the delay of partial results and the real-time factor.
"""
_STDIN = "-"
_READ = 0.02  # seconds of audio that are read at once
_COLUMNS = 79  # of a partial result on a terminal


@register_command(
    "listen",
    "MODEL --wav -|FILE [--pause SECONDS] [--partial] [--json | --ctm | --format NAME] [--realtime] ...",
    "write what is said while it is said",
    own_help=lambda _: _parser().format_help(),
    group="use",
)
def run(args: list[str]) -> int:
    """Recognise audio while it comes.

    :param args: model, options, ``++key value`` for the config
    :return: exit code
    :raises ConfigError: wrong arguments; no such model or config; a model that needs all of the audio
    :raises DataError: the audio is damaged, cut off, or not what the model takes
    """
    first = next((index for index, word in enumerate(args) if word.startswith("++")), len(args))
    given, overrides = _parser().parse_args(args[:first]), args[first:]
    form = FORMATS[given.format or "txt"]
    if given.partial and given.format != "jsonl":
        raise CommandError("listen: --partial: only --json has a form for partial results")
    if given.pause is not None and form.of_one:
        raise CommandError("listen: --format %s holds one transcript, but --pause makes several" % given.format)
    path = given.wav if given.wav == _STDIN else os.path.abspath(given.wav)
    with log.on_stderr(WARNING_LEVEL):
        model = find_model(given.model, "listen", config=given.config, epoch=given.epoch, overrides=overrides)
        with log.at_level(log_level(model, overrides)), in_folder(model.folder), _opened(path, given.wav) as file:
            recogniser = StreamingRecogniser(model.config, layer=given.layer, data=given.data, block=given.block)
            fault = recogniser.outputs.without_times
            if form.needs_times and fault:
                raise CommandError("listen: --format %s needs times, but %s" % (given.format, fault))
            _Session(given, recogniser, WavStream(file, given.wav), form).run()
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("listen", _DOC)
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder or prefix of checkpoints, one checkpoint, or a config")
    add("--wav", metavar="FILE", required=True, help="wav file, which may still be written; -: the standard input")
    add("--pause", metavar="SECONDS", type=_seconds, help="end an utterance where no label comes for so long")
    add("--format", metavar="NAME", choices=FORMATS.names(), help="of the output: %s" % ", ".join(FORMATS.names()))
    for flag, name in (("--json", "jsonl"), ("--ctm", "ctm")):
        add(flag, dest="format", action="store_const", const=name, help="the same as --format %s" % name)
    add("--partial", action="store_true", help="with --json: a line for each new partial result, too")
    add("--realtime", action="store_true", help="read a file as fast as it was spoken, and measure the delay")
    add("--block", metavar="FRAMES", type=positive, help="frames of features that are computed at once (0.1 seconds)")
    add("--epoch", metavar="N", type=epoch, help="of the checkpoint, or %r; default: the newest one" % BEST)
    add("--config", metavar="FILE", help="the config of the model, if it is not where it was at the training")
    add("--layer", metavar="NAME", help="with posteriors of CTC or labels of a search; default: of transcribe")
    add("--data", metavar="NAME", help="the dataset whose features are computed; default: the one to search")
    add("--channel", metavar="N", type=channel, help="of audio with several: its number from 0, or %r" % MIX)
    add("--sample-rate", metavar="HZ", type=positive, help="of the training data, if the config does not say it")
    return parser


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise argparse.ArgumentTypeError("expected a number of seconds, not %r" % value) from None
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0, not %r" % value)
    return seconds


@contextlib.contextmanager
def _opened(path: str, name: str) -> Iterator[BinaryIO]:
    if path == _STDIN:
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise FileDataError("wav file %r does not exist" % name) from None
    except OSError as exc:
        raise FileDataError("wav file %r cannot be read: %s" % (name, exc.strerror or exc)) from exc


class _Session:
    """One run of the command: audio in, transcripts out, times of both."""

    def __init__(
        self, given: argparse.Namespace, recogniser: StreamingRecogniser, wav: WavStream, form: Format
    ) -> None:
        self._name = given.wav
        self._recogniser, self._wav, self._form = recogniser, wav, form
        self._partial, self._realtime = given.partial, given.realtime
        features = recogniser.audio.features
        rate = rate_of_training(features, given.sample_rate, "listen")
        if rate is None:
            warn_of_rate()
        elif wav.sample_rate != rate:
            raise FileDataError(
                "wav file %r has %d samples per second, but the model takes %d. Convert it before: "
                "ffmpeg -i FILE -ar %d -f wav - | returnn-tf listen ... --wav -"
                % (self._name, wav.sample_rate, rate, rate)
            )
        self._reader = AudioReader(features, rate, channel=given.channel)
        Listener.warm_up(recogniser, wav.sample_rate)
        self._listener = Listener(recogniser, wav.sample_rate, self._tag, given.pause)
        self._lookahead = lookahead_seconds(features, wav.sample_rate)
        self._computing: list[float] = []  # seconds for each piece of audio that completed a block
        self._seconds = 0.0  # of computing
        self._delays: list[float] = []  # from the audio to the update based on it, if it came as fast as it was spoken
        self._shown = ""

    @property
    def _tag(self) -> str:
        return "stdin" if self._name == _STDIN else self._name

    def run(self) -> None:
        """Recognise all of the audio; what came before an error is written, too."""
        fault: BaseException
        begin = time.perf_counter()
        try:
            for samples in self._wav.blocks(_READ):
                samples = self._reader.of_channel(samples, self._name)
                if self._realtime:
                    due = begin + self._listener.seconds + len(samples) / self._wav.sample_rate
                    time.sleep(max(0.0, due - time.perf_counter()))
                self._take(samples, begin)
        except (DataError, KeyboardInterrupt) as exc:
            fault = exc
        else:
            self._finish()
            return
        with contextlib.suppress(DataError):  # the first fault is the one to tell
            if isinstance(fault, StepError):
                self._write([self._listener.stop()])
            else:
                self._finish()
        raise fault

    def _take(self, samples: NDArray[Any], begin: float) -> None:
        start = time.perf_counter()
        updates = self._listener.hear(samples)
        end = time.perf_counter()
        self._seconds += end - start
        if updates:
            self._computing.append(end - start)
            self._delays.append(end - begin - updates[-1].seconds)
        self._write(updates)

    def _finish(self) -> None:
        start = time.perf_counter()
        if not self._listener.seconds:
            raise FileDataError("wav file %r has no samples" % self._name)
        updates = self._listener.end()
        self._seconds += time.perf_counter() - start
        self._write(updates)
        log.write(SCORE_LEVEL, self._summary())

    def _write(self, updates: list[Update]) -> None:
        for update in updates:
            if update.transcript is not None:
                self._show("")
                self._form.write([update.transcript], sys.stdout)
                self._shown = ""
            elif update.text != self._shown:
                self._shown = update.text
                self._show(update.text)
                if self._partial:
                    found = {"tag": self._tag, "partial": update.text, "seconds": round(update.seconds, 3)}
                    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
                    sys.stdout.flush()

    def _show(self, text: str) -> None:
        """Show the end of a partial result in the last line of a terminal."""
        if is_terminal(sys.stderr) and not self._partial:
            sys.stderr.write("\r\033[K" + printable(text[-_COLUMNS:]))
            sys.stderr.flush()

    def _summary(self) -> str:
        seconds = self._listener.seconds
        line = "Heard %.1f s of audio, real-time factor %.3f, by %s" % (
            seconds,
            self._seconds / seconds,
            self._recogniser.checkpoint,
        )
        block = self._recogniser.block_seconds
        if block is None or not self._computing:
            return line
        computing, lookahead = 1000 * np.array(self._computing), 1000 * self._lookahead
        held_back = 1000 * self._recogniser.held_back_seconds
        line += (
            "\nPartial results: at most %.0f ms after the audio: %.0f ms of a block, %s%.1f ms that features "
            "look ahead, %.1f ms of computing (median; at most %.1f)"
            % (
                1000 * block + held_back + lookahead + computing.max(),
                1000 * block,
                "%.0f ms of the frame after it, " % held_back if held_back else "",
                lookahead,
                np.median(computing),
                computing.max(),
            )
        )
        if self._realtime:
            delays = 1000 * np.array(self._delays)
            line += "\nMeasured from the end of a block: %.1f ms (median), at most %.1f ms" % (
                np.median(delays),
                delays.max(),
            )
        return line
