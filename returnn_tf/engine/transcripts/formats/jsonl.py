"""``jsonl``: a JSON object in each line, with all that is known of a sequence.

``{"tag", "duration", "text", "score", "parts", "words", "labels", "alternatives"}``; a word or label is ``{"text",
"start", "end", "confidence"}``, an alternative has the same keys as the best hypothesis. What is unknown is absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.engine.transcripts.formats.base import register_format
from returnn_tf.engine.transcripts.transcript import Hypothesis, Piece, Transcript, text


@register_format("jsonl", "a JSON object each", ".jsonl", has_all=True)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    record: dict[str, Any] = {"tag": transcript.tag}
    if transcript.duration is not None:
        record["duration"] = round(transcript.duration, 3)
    record.update(_of_hypothesis(transcript.best))
    if len(transcript.hypotheses) > 1:
        record["alternatives"] = [_of_hypothesis(hypothesis) for hypothesis in transcript.hypotheses[1:]]
    yield json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _of_hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    record: dict[str, Any] = {"text": text(hypothesis)}
    score = _number(hypothesis.score)
    if score is not None:
        record["score"] = score
    if hypothesis.parts:
        record["parts"] = {name: _number(value) for name, value in hypothesis.parts.items()}
    record["words"] = _of_pieces(hypothesis.words)
    record["labels"] = _of_pieces(hypothesis.labels)
    return record


def _of_pieces(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    return [
        {
            "text": piece.text,
            **{
                name: round(value, 3)
                for name, value in (("start", piece.start), ("end", piece.end), ("confidence", piece.confidence))
                if value is not None
            },
        }
        for piece in pieces
    ]


def _number(value: Optional[float]) -> Optional[float]:
    """Return a score as JSON can write it: a hypothesis that is impossible has none."""
    return float(value) if value is not None and math.isfinite(value) else None
