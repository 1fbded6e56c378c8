"""From frames to seconds: when labels begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.engine.transcripts.best_path import Frames
from returnn_tf.engine.transcripts.transcript import Piece

#: Seconds: how long a label goes on behind its frames, before a pause. Networks put a label where they are sure of it,
#: not where it ends; longer pauses are silence.
_LONGER = 0.1


def timed_labels(
    names: Sequence[str],
    frames: Optional[Frames],
    seconds: Optional[float],
    duration: Optional[float],
    confidence: Optional[Sequence[float]] = None,
) -> tuple[Piece, ...]:
    """Return labels with their times: a label goes on behind its frames until the next one, but not much longer.

    :param frames: of each; None: they are spread evenly
    :param seconds: of a frame; None: times are not known at all
    :param duration: of the audio in seconds
    """
    spans = _spans(frames, len(names), seconds, duration)
    pieces = []
    for place, name in enumerate(names):
        start, end = (None, None) if spans is None else spans[place]
        sure = None if confidence is None else min(max(confidence[place], 0.0), 1.0)
        pieces.append(Piece(name, start, end, sure))
    return tuple(pieces)


def _spans(
    frames: Optional[Frames], count: int, seconds: Optional[float], duration: Optional[float]
) -> Optional[list[tuple[float, float]]]:
    """Return start and end of each label: it goes on behind its frames until the next one, for at most `_LONGER`.

    :param frames: None: the labels are spread evenly
    :param count: number of labels
    :param seconds: of a frame
    :return: None if times are not known at all
    """
    if seconds is None or duration is None:
        return None
    if frames is None:
        return [(duration * place / count, duration * (place + 1) / count) for place in range(count)]
    starts = [first * seconds for first, _ in frames]
    ends = [past * seconds for _, past in frames]
    ends = [max(end, min(following, end + _LONGER)) for end, following in zip(ends, [*starts[1:], duration])]
    # The last frame of a layer may be padded.
    return [(start, min(end, duration) if start < duration else end) for start, end in zip(starts, ends)]
