"""``ctm``: NIST's time-marked words of the best hypothesis, as ``sclite`` reads them.

A line each: file (the tag), channel, begin and duration in seconds, word, confidence::

    dev-1 1 0.370 0.240 seven 0.981

``sclite`` wants the lines of a file together and sorted by begin, as they are here.
"""

from __future__ import annotations

from collections.abc import Iterator

from returnn_tf.engine.transcripts.formats.base import column, register_format, timed
from returnn_tf.engine.transcripts.transcript import Transcript

_CHANNEL = "1"


@register_format("ctm", "a line each: tag, channel, begin, duration, word, confidence", ".ctm", needs_times=True)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    tag = column(transcript.tag, transcript, "tag")
    for word, start, end in timed(transcript.best.words, transcript):
        begin = round(start, 3)  # so that begin + duration is the rounded end
        text = column(word.text, transcript, "word")
        fields = [tag, _CHANNEL, "%.3f" % begin, "%.3f" % (round(end, 3) - begin), text]
        if word.confidence is not None:
            fields.append("%.3f" % word.confidence)
        yield " ".join(fields) + "\n"
