"""``textgrid``: tiers of words and labels of the best hypothesis, for Praat; in its long text form.

The intervals of a tier cover the audio without gap, as Praat wants it: between words they are empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from returnn_tf.config.errors import DataError
from returnn_tf.engine.transcripts.formats.base import register_format, timed
from returnn_tf.engine.transcripts.transcript import Piece, Transcript


@register_format("textgrid", "tiers of words and labels, for Praat", ".TextGrid", needs_times=True, of_one=True)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    best = transcript.best
    tiers = [("words", best.words), ("labels", best.labels)]
    ends = [end for _, pieces in tiers for _, _, end in timed(pieces, transcript)]
    end = max([transcript.duration or 0.0, *ends])
    if not end:
        raise DataError(
            "Sequence %r: nothing was recognised and the duration is unknown, but a TextGrid needs one. Write another "
            "format, e.g. jsonl." % transcript.tag,
            topic="search",
        )
    yield 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n'
    yield "xmin = 0\nxmax = %.6f\ntiers? <exists>\nsize = %d\nitem []:\n" % (end, len(tiers))
    for number, (name, pieces) in enumerate(tiers, 1):
        intervals = list(_intervals(pieces, transcript, end))
        yield '    item [%d]:\n        class = "IntervalTier"\n        name = "%s"\n' % (number, name)
        yield "        xmin = 0\n        xmax = %.6f\n        intervals: size = %d\n" % (end, len(intervals))
        for index, (text, begin, past) in enumerate(intervals, 1):
            yield "        intervals [%d]:\n            xmin = %.6f\n            xmax = %.6f\n" % (index, begin, past)
            yield '            text = "%s"\n' % text.replace('"', '""')


def _intervals(pieces: Sequence[Piece], transcript: Transcript, end: float) -> Iterator[tuple[str, float, float]]:
    """Return (text, start, end) of labels or words and of what is between them."""
    last = 0.0
    for piece, start, past in timed(pieces, transcript):
        if start > last:
            yield "", last, start
        yield piece.text, start, past
        last = past
    if end > last:
        yield "", last, end
