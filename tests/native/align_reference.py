"""Sums and maxima over alignments in numpy with float64, state by state in log space; gradients by differences."""

import numpy as np


def ctc_chain(labels, blank, label_loop):
    """Return the classes, and for each state the distances of the states before it."""
    classes = [blank]
    for label in labels:
        classes += [label, blank]
    ways = []
    for s, label in enumerate(classes):
        is_label = s % 2 == 1
        ways.append([0, 1] if not is_label or label_loop else [1])
        if is_label and s > 1 and not (label_loop and label == classes[s - 2]):
            ways[s].append(2)
    return classes, ways


def alignment_score(scores, classes, ways, optional_ends, combine):
    """Return the score of one sequence; scores [frames, classes], combine: numpy.logaddexp or numpy.maximum."""
    n = len(classes)
    if not len(scores):
        return 0.0 if n <= (1 if optional_ends else 0) else -np.inf
    ends = 2 if optional_ends else 1
    alpha = [float(scores[0, c]) if s < ends else -np.inf for s, c in enumerate(classes)]
    for frame in scores[1:].astype("float64"):
        new = []
        for s in range(n):
            best = -np.inf
            for back in ways[s]:
                if s - back >= 0:
                    best = combine(best, alpha[s - back])
            new.append(best + frame[classes[s]])
        alpha = new
    total = -np.inf
    for value in alpha[max(n - ends, 0) :]:
        total = combine(total, value)
    return float(total)


def ctc_loss(logits, labels, blank, label_loop=True, normalized=False):
    """Return the loss of one sequence, infinite if there is no alignment."""
    scores = logits.astype("float64")
    if not normalized:
        scores = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return -alignment_score(scores, *ctc_chain(labels, blank, label_loop), True, np.logaddexp)


def transducer_loss(logits, labels, blank, label_takes_frame=False, normalized=False):
    """Return the loss of one sequence [frames, labels + 1, classes], infinite if there is no alignment."""
    scores = logits.astype("float64")
    if not normalized:
        scores = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    frames, count = len(scores), len(labels)
    alpha = np.full((frames + 1, count + 1), -np.inf)
    alpha[0, 0] = 0.0
    for t in range(frames):
        for u in range(count + 1):
            alpha[t + 1, u] = np.logaddexp(alpha[t + 1, u], alpha[t, u] + scores[t, u, blank])
            if u < count:
                to = (t + 1 if label_takes_frame else t, u + 1)
                alpha[to] = np.logaddexp(alpha[to], alpha[t, u] + scores[t, u, labels[u]])
    return -float(alpha[frames, count])


def slope(function, x, direction, step=1e-5):
    """Return the derivative of a function of an array along a direction."""
    x = x.astype("float64")
    return (function(x + step * direction) - function(x - step * direction)) / (2 * step)
