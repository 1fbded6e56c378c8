"""The files of a command line: read ahead, recognised in batches, and joined from their parts, in the order given."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from returnn_tf.cli.transcribe.audio import AudioPart, AudioReader
from returnn_tf.cli.transcribe.recogniser import Recogniser
from returnn_tf.config.errors import ConfigError, DataError, UserError
from returnn_tf.datasets.core.read_ahead import ReadAhead
from returnn_tf.engine.transcripts.transcript import Hypothesis, Piece, Transcript
from returnn_tf.logging.levels import SCORE_LEVEL
from returnn_tf.logging.log import log
from returnn_tf.logging.text import counted

#: Batches whose sequences are put together by length.
_BATCHES_AHEAD = 4


@dataclass(frozen=True)
class File:
    """An audio file.

    :param name: as the user wrote it
    :param path: absolute
    :param tag: of its transcript
    """

    name: str
    path: str
    tag: str


@dataclass(frozen=True)
class _Read:
    file: File
    parts: list[AudioPart]


class Job:
    """Transcribes files.

    :param nbest: hypotheses of each
    """

    def __init__(self, recogniser: Recogniser, reader: AudioReader, files: Sequence[File], nbest: int) -> None:
        self._recogniser, self._reader, self._files, self._nbest = recogniser, reader, files, nbest
        #: Files that could not be read or recognised.
        self.failed = 0
        self._audio_seconds = self._seconds = self._setup_seconds = 0.0
        self._steps = self._setup_steps = 0

    def transcripts(self) -> Generator[Transcript, None, None]:
        """Yield the transcript of each file that can be read, in the order of the files; others are logged."""
        start = time.perf_counter()
        bar = log.progress("transcribe")
        reading = ReadAhead(self._read, lambda place: place < len(self._files), self._reader.features.threads())
        waiting: list[_Read] = []
        try:
            for place, file in enumerate(self._files):
                try:
                    waiting.append(_Read(file, reading.get(place)))
                except (ConfigError, DataError) as exc:
                    self.fail(file.name, exc)
                if self._is_enough(waiting) or place + 1 == len(self._files):
                    yield from self._recognised(waiting)
                    waiting = []
                    bar.update(self._steps, (place + 1) / len(self._files))
        finally:
            reading.close()
            bar.close()
            self._seconds = time.perf_counter() - start

    def summary(self) -> str:
        """Return a line about the files, the time, and the failures."""
        done = counted(len(self._files) - self.failed, "file")
        line = "Transcribed %s, %.1f s of audio in %.1f s" % (done, self._audio_seconds, self._seconds)
        if self._audio_seconds:
            line += ", real-time factor %.3f" % (self._seconds / self._audio_seconds)
            rest = (self._seconds - self._setup_seconds) / self._audio_seconds
            made_graphs = self._steps == self._setup_steps
            line += " with making graphs" if made_graphs else " (%.3f without making graphs)" % rest
        failed = "; %s failed" % counted(self.failed, "file") if self.failed else ""
        return "%s, by %s%s" % (line, self._recogniser.checkpoint, failed)

    def _read(self, place: int) -> list[AudioPart]:
        file = self._files[place]
        return self._reader.read(file.path, file.name)

    def fail(self, name: str, error: UserError) -> None:
        """Log that there is no transcript of a file, and count it."""
        self.failed += 1
        text = str(error)
        if error.topic == "memory":
            text += "\n  --segment SECONDS cuts long audio at pauses."
        log.write(SCORE_LEVEL, "error: %s" % (text if repr(name) in text else "%r: %s" % (name, text)))

    def _is_enough(self, waiting: Sequence[_Read]) -> bool:
        frames = sum(len(part.features) for read in waiting for part in read.parts)
        count = sum(len(read.parts) for read in waiting)
        return self._recogniser.batch_size.is_reached(frames, count, _BATCHES_AHEAD)

    def _recognised(self, waiting: Sequence[_Read]) -> Iterator[Transcript]:
        """Yield the transcripts of files; if a batch fails, each is recognised alone, to find the one that fails."""
        try:
            found = self._hypotheses(waiting)
        except DataError as exc:
            if len(waiting) == 1:
                self.fail(waiting[0].file.name, exc)
                return
            for read in waiting:
                yield from self._recognised([read])
            return
        for read in waiting:
            own = [found.pop(0) for _ in read.parts]
            seconds = sum(part.seconds for part in read.parts)
            self._audio_seconds += seconds
            if len(own) > 1:
                hypotheses = [joined(read.parts, [each[0] for each in own])]
            else:
                hypotheses = [joined(read.parts, [each]) for each in own[0][: self._nbest]]
            yield Transcript(read.file.tag, tuple(hypotheses), seconds)

    def _hypotheses(self, waiting: Sequence[_Read]) -> list[Sequence[Hypothesis]]:
        """Return the hypotheses of all parts of files."""
        parts = [part for read in waiting for part in read.parts]
        names = [read.file.name for read in waiting for _ in read.parts]
        found: list[Sequence[Hypothesis]] = [[] for _ in parts]
        if not parts:
            return found
        steps = self._recogniser.recognise([part.features for part in parts], names)
        setup = 0.0
        with contextlib.closing(steps):
            for indices, hypotheses, step in steps:
                for index, each in zip(indices, hypotheses):
                    found[index] = each
                self._steps += 1
                self._setup_steps += step.setup.seconds > setup
                setup = step.setup.seconds
        self._setup_seconds += setup
        return found


def joined(parts: Sequence[AudioPart], hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Return one hypothesis of a file from one of each of its parts, with times from the begin of the file."""
    pairs = list(zip(parts, hypotheses))
    labels = tuple(_in_file(piece, part) for part, each in pairs for piece in each.labels)
    words = tuple(_in_file(piece, part) for part, each in pairs for piece in each.words)
    if len(pairs) == 1:
        return replace(hypotheses[0], labels=labels, words=words)
    scores = [each.score for each in hypotheses if each.score is not None]
    names = dict.fromkeys(name for each in hypotheses for name in each.parts)
    by_part = {name: sum(each.parts.get(name, 0.0) for each in hypotheses) for name in names}
    return Hypothesis(labels, words, sum(scores) if len(scores) == len(hypotheses) else None, by_part)


def _in_file(piece: Piece, part: AudioPart) -> Piece:
    """Return a label or word with times from the begin of the file; frames may be longer than their audio."""
    start, end = (None if each is None else part.start + min(each, part.seconds) for each in (piece.start, piece.end))
    return Piece(piece.text, start, end, piece.confidence)
