"""Words from labels with times and confidence.

The confidence of a word is the lowest of those of its labels, since a word is right only if all of its labels are, and
a product would punish long words for their length.
"""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.datasets.vocabulary.spelling import Spelling
from returnn_tf.engine.transcripts.transcript import Piece


def words_of(spelling: Spelling, labels: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the words of labels, with the times and the lowest confidence of their labels."""
    words = []
    for text, first, past in spelling.spans([label.text for label in labels]):
        own = labels[first:past]
        known = [label.confidence for label in own if label.confidence is not None]
        words.append(Piece(text, own[0].start, own[-1].end, min(known) if len(known) == len(own) else None))
    return tuple(words)
