"""The best alignment of given labels to frames, for several label sequences of one utterance at a time. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

#: Of each label: its first frame, and the one past its last.
Frames = Sequence[tuple[int, int]]
#: The score of what is impossible: any other path is better, and sums stay finite.
_IMPOSSIBLE = -1e9


def ctc_frames(log_probs: NDArray[Any], sequences: Sequence[Sequence[int]], blank: int) -> list[Optional[Frames]]:
    """Return the frames of the labels of each sequence on its best CTC path (Graves et al. 2006, as Viterbi).

    :param log_probs: [frames, classes]
    :param sequences: classes of the labels, without blanks
    :param blank: class
    :return: for each sequence; None if there are too few frames for it
    """
    best_labels, best_frames = _best_of_all(log_probs, blank)
    others = [classes for classes in sequences if list(classes) != best_labels]
    scores = [log_probs[:, list(classes)] for classes in others]
    repeats = [[a == b for a, b in zip(classes, classes[1:])] for classes in others]
    found = iter(best_paths(scores, log_probs[:, blank], repeats))
    return [best_frames if list(classes) == best_labels else next(found) for classes in sequences]


def _best_of_all(log_probs: NDArray[Any], blank: int) -> tuple[Optional[list[int]], Frames]:
    """Return the labels and frames of the best path of all, in time and memory of the frames alone.

    :return: without labels if a frame has no score at all
    """
    if not len(log_probs) or not np.isfinite(log_probs.max(axis=1)).all():
        return None, ()
    path = log_probs.argmax(axis=1)
    starts = np.flatnonzero(np.diff(path, prepend=-1))
    ends = np.append(starts[1:], len(path))
    runs = [(int(path[start]), (int(start), int(end))) for start, end in zip(starts, ends) if path[start] != blank]
    return [label for label, _ in runs], tuple(frames for _, frames in runs)


def best_paths(
    label_scores: Sequence[NDArray[Any]], other_scores: NDArray[Any], separated: Sequence[Sequence[bool]]
) -> list[Optional[Frames]]:
    """Return the frames of the labels of each sequence on its best path.

    Each label has one frame or more; before, between and behind labels there may be frames of none.

    :param label_scores: of each sequence [frames, labels], log scores of its labels in each frame
    :param other_scores: [frames], log scores of frames without label
    :param separated: of each sequence [labels - 1], whether a frame of none must be between a label and the next
    :return: for each sequence; None if there are too few frames for it
    """
    frames = len(other_scores)
    counts = np.array([scores.shape[1] for scores in label_scores])
    found: list[Optional[Frames]] = [() if count == 0 else None for count in counts]
    if not frames or not len(counts) or not counts.max():
        return found
    # State 2 i + 1 is label i, state 2 i what is before it.
    states = 2 * int(counts.max()) + 1
    emitted = np.full((frames, len(counts), states), _IMPOSSIBLE)
    emitted[:, :, 0::2] = np.maximum(other_scores, _IMPOSSIBLE)[:, None, None]
    skips = np.full((len(counts), states), _IMPOSSIBLE)
    for row, (scores, apart) in enumerate(zip(label_scores, separated)):
        emitted[:, row, 1 : 2 * scores.shape[1] : 2] = np.maximum(scores, _IMPOSSIBLE)
        skips[row, 3 : 2 * scores.shape[1] : 2] = np.where(np.asarray(apart, bool), _IMPOSSIBLE, 0.0)
    total = np.full((len(counts), states), _IMPOSSIBLE * frames)
    total[:, :2] = emitted[0, :, :2]
    back = np.zeros((frames, len(counts), states), np.int8)
    moves = np.full((3, len(counts), states), _IMPOSSIBLE * frames)
    for frame in range(1, frames):
        moves[0] = total
        moves[1, :, 1:] = total[:, :-1]
        moves[2, :, 2:] = total[:, :-2] + skips[:, 2:]
        back[frame] = moves.argmax(axis=0)
        total = np.take_along_axis(moves, back[frame][None].astype(np.intp), axis=0)[0] + emitted[frame]
    for row, count in enumerate(counts):
        # A path through something impossible has too few frames, or a frame without any score.
        last = 2 * count if total[row, 2 * count] > total[row, 2 * count - 1] else 2 * count - 1
        if count and total[row, last] > _IMPOSSIBLE / 2:
            found[row] = _spans(_traced(back[:, row], int(last)), int(count))
    return found


def _traced(back: NDArray[Any], state: int) -> NDArray[np.int64]:
    """Return the state of each frame, from the moves to them [frames, states]."""
    path = np.zeros(len(back), np.int64)
    for frame in range(len(back) - 1, -1, -1):
        path[frame] = state
        state -= int(back[frame, state])
    return path


def _spans(path: NDArray[np.int64], count: int) -> Frames:
    labels = np.arange(count) * 2 + 1
    firsts, pasts = np.searchsorted(path, labels, "left"), np.searchsorted(path, labels, "right")
    return tuple((int(first), int(past)) for first, past in zip(firsts, pasts))


def frames_of_path(path: Sequence[int], labels: Sequence[int]) -> Optional[Frames]:
    """Return the frames of labels that a search chose frame by frame, with one more label for frames of none.

    A label has one frame each, as in a transducer, or all neighbours that are equal are one label, as in CTC.

    :param path: the label of each frame
    :param labels: what remains of them
    :return: None if the labels do not follow from the path in one of these ways
    """
    if list(path) == list(labels):
        return tuple((frame, frame + 1) for frame in range(len(path)))
    others = set(path) - set(labels)
    if len(others) > 1:
        return None
    chosen = [(label, (frame, frame + 1)) for frame, label in enumerate(path) if label not in others]
    merged: list[tuple[int, tuple[int, int]]] = []
    for label, (frame, past) in chosen:
        if merged and merged[-1][0] == label and merged[-1][1][1] == frame:
            merged[-1] = label, (merged[-1][1][0], past)
        else:
            merged.append((label, (frame, past)))
    for found in (chosen, merged):
        if [label for label, _ in found] == list(labels):
            return tuple(frames for _, frames in found)
    return None
