"""Words from labels with times and confidence.

The confidence of a word is the lowest of those of its labels, since a word is right only if all of its labels are, and
a product would punish long words for their length.
"""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.engine.transcripts.transcript import Piece


def words_of(spans: Sequence[tuple[str, int, int]], labels: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return words with the times and the lowest confidence of their labels.

    :param spans: each word with its first label, and the one past its last
    """
    words = []
    for text, first, past in spans:
        own = labels[first:past]
        known = [label.confidence for label in own if label.confidence is not None]
        words.append(Piece(text, own[0].start, own[-1].end, min(known) if len(known) == len(own) else None))
    return tuple(words)
