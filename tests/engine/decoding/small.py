"""What the tests of decoders share: random scores, and all alignments by enumeration."""

import itertools

import numpy as np

from returnn_tf.engine.decoding.beam import BeamOptions

#: Nothing is left out, so that the results are those of an enumeration.
EXACT = BeamOptions(
    beam_size=100000, beam_threshold=1e30, labels_per_frame=0, lm_scale=1.0, prior_scale=1.0, nbest=100000
)


def random_scores(frames, num_labels, seed=1, scale=1.0):
    """Return normalised log scores [frames, labels]."""
    scores = np.random.RandomState(seed).normal(0, scale, (frames, num_labels))
    return (scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))).astype("float32")


def transitions(path, blank, loop, forward):
    """Return the score of the transitions of a path: for each label, and for each further frame of it."""
    runs = [len(list(run)) for label, run in itertools.groupby(path) if label != blank]
    return sum(forward + loop * (frames - 1) for frames in runs)


def all_sums(scores, blank, loop=0.0, forward=0.0):
    """Return the log sum over all alignments of each sequence of labels; without a blank, of labels that repeat."""
    sums = {}
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        labels = tuple(label for label, _ in itertools.groupby(path) if label != blank)
        total = scores[np.arange(len(scores)), list(path)].sum(dtype="float64")
        total += transitions(path, blank, loop, forward)
        sums[labels] = np.logaddexp(sums.get(labels, -np.inf), total)
    return sums


def best_path(scores, labels, blank, loop=0.0, forward=0.0):
    """Return the score of the best alignment of labels, and the frames of each label."""
    best = (-np.inf, None)
    for path in itertools.product({blank, *labels} - {None}, repeat=len(scores)):
        runs = [(label, list(run)) for label, run in itertools.groupby(range(len(path)), key=lambda t: path[t])]
        if tuple(label for label, _ in runs if label != blank) != tuple(labels):
            continue
        total = float(scores[np.arange(len(scores)), list(path)].sum(dtype="float64"))
        total += transitions(path, blank, loop, forward)
        if total > best[0]:
            best = total, tuple((run[0], run[-1] + 1) for label, run in runs if label != blank)
    return best
