"""``nbest``: all hypotheses of the beam, a line each, in the columns of Moses and its tools for rescoring.

``tag ||| words ||| parts of the score ||| score``; a part is ``name= value``::

    dev-1 ||| seven two ||| acoustic= -3.21 lm= -1.40 ||| -4.61
"""

from __future__ import annotations

from collections.abc import Iterator

from returnn_tf.config.errors import DataError
from returnn_tf.engine.transcripts.formats.base import column, register_format
from returnn_tf.engine.transcripts.transcript import Transcript, text

_SEPARATOR = " ||| "


@register_format(
    "nbest", "a line for each hypothesis: tag ||| words ||| parts of the score ||| score", ".nbest", has_all=True
)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    for hypothesis in transcript.hypotheses:
        parts = " ".join("%s= %.6g" % item for item in hypothesis.parts.items())
        score = "" if hypothesis.score is None else "%.6g" % hypothesis.score
        words = text(hypothesis)
        if _SEPARATOR.strip() in words.split():
            raise DataError(
                "Sequence %r: the text %r has '|||', which separates the columns of this format. Write another one, "
                "e.g. jsonl." % (transcript.tag, words),
                topic="search",
            )
        yield _SEPARATOR.join([column(transcript.tag, transcript, "tag"), words, parts, score]).rstrip() + "\n"
