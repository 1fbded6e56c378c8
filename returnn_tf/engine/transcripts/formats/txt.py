"""``txt``: the words of the best hypothesis, a line for each sequence."""

from __future__ import annotations

from collections.abc import Iterator

from returnn_tf.engine.transcripts.formats.base import register_format
from returnn_tf.engine.transcripts.transcript import Transcript, text


@register_format("txt", "a line each: the words", ".txt")
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    yield text(transcript.best) + "\n"
