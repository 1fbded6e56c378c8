"""``srt``: subtitles (SubRip) of the best hypothesis.

A subtitle ends before a pause of half a second, or where a further word would exceed 42 characters or 6 seconds: limits
that guides to subtitling give for a line and its time on the screen.
"""

from __future__ import annotations

from collections.abc import Iterator

from returnn_tf.engine.transcripts.formats.base import register_format, timed
from returnn_tf.engine.transcripts.transcript import Transcript

_MOST_CHARACTERS = 42
_MOST_SECONDS = 6.0
_PAUSE = 0.5


@register_format("srt", "subtitles", ".srt", needs_times=True, of_one=True)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    for number, (text, start, end) in enumerate(_subtitles(transcript), 1):
        yield "%d\n%s --> %s\n%s\n\n" % (number, _time(start), _time(end), text)


def _subtitles(transcript: Transcript) -> Iterator[tuple[str, float, float]]:
    """Return (text, start, end) of each subtitle."""
    current = None
    for word, start, end in timed(transcript.best.words, transcript):
        if current is not None:
            text, begin, last = current
            longer = "%s %s" % (text, word.text)
            if start - last < _PAUSE and len(longer) <= _MOST_CHARACTERS and end - begin <= _MOST_SECONDS:
                current = longer, begin, end
                continue
            yield current
        current = word.text, start, end
    if current is not None:
        yield current


def _time(seconds: float) -> str:
    """Return hours:minutes:seconds,milliseconds."""
    total = round(1000 * seconds)
    return "%02d:%02d:%02d,%03d" % (total // 3600000, total // 60000 % 60, total // 1000 % 60, total % 1000)
