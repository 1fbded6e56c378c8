"""Checks of the training data, without the network: labels, empty sequences, and the values of features."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from returnn_tf.tasks.sanity.report import FAILED, WARNING, Finding, ok
from returnn_tf.tasks.sanity.samples import Sample, Samples
from returnn_tf.tensor import Data

_SHOWN = 3  # tags in a message
_OTHER = 2.0  # deviations by which the means of another dataset may differ
_FAR = 3.0  # a mean farther than this number of deviations from 0, or a deviation this many times off 1


def check_data(samples: Samples, blank_keys: set[str]) -> Iterator[Finding]:
    """Yield the findings on each data key.

    :param blank_keys: targets of losses which have a blank behind the labels
    """
    sparse = {key: data.sparse_dim.size for key, data in samples.used.items() if data.sparse_dim is not None}
    zeros = {size for key, size in sparse.items() if _has_label_0(key, samples)}
    for key, data in samples.used.items():
        with_key = samples.numbers(key)
        if with_key and data.sparse_dim is not None:
            yield _labels(key, data, with_key, key in blank_keys, sparse[key] not in zeros)
        elif with_key:
            yield _features(key, with_key)
    yield _batches(samples)
    if samples.length_limits:
        yield _left_out(samples)


def check_other_data(samples: Samples, train: Samples, blank_keys: set[str]) -> Iterator[Finding]:
    """Yield the findings on a dataset for evaluation: what the network can't read, or does not see in training."""
    for key, data in samples.used.items():
        with_key, trained = samples.numbers(key), train.numbers(key)
        if not with_key or not trained:
            continue
        if data.sparse_dim is not None:
            found = _labels(key, data, with_key, key in blank_keys, never_0=False)
            wrong = found.result == FAILED and found.topic == "extern-data"
            yield found if wrong else ok(found.check, found.found)
        else:
            found = _features(key, with_key)
            yield (
                found if found.topic == "nan" and found.result == FAILED else _like_train(found, key, with_key, trained)
            )


def _like_train(found: Finding, key: str, samples: list[Sample], trained: list[Sample]) -> Finding:
    """Compare the features with those of the training data."""
    values, before = _frames(key, samples), _frames(key, trained)
    if not len(values) or not len(before) or values.shape[1] != before.shape[1]:
        return ok(found.check, found.found)
    normal = before.std(axis=0).mean() + 1e-9
    distance = float(np.abs(values.mean(axis=0) - before.mean(axis=0)).mean() / normal)
    ratio = float(values.std(axis=0).mean() / normal)
    if distance < _OTHER and 1 / _FAR < ratio < _FAR:
        return ok(found.check, found.found)
    text = (
        "the features are not like those of 'train': their means are %.2g deviations away, their deviation is %.2g "
        "times as large. Make both in the same way, with the same mean and variance." % (distance, ratio)
    )
    return Finding(found.check, WARNING, found.found, text, topic="data-files")


def _frames(key: str, samples: list[Sample]) -> NDArray[np.float64]:
    """Return all frames [frames, features]."""
    arrays = [each.arrays[key] for each in samples]
    frames: NDArray[np.float64] = np.concatenate(
        [a.reshape(-1, a.shape[-1] if a.ndim > 1 else 1) for a in arrays]
    ).astype("float64")
    return frames


def _has_label_0(key: str, samples: Samples) -> bool:
    return any(bool(np.any(each.arrays[key] == 0)) for each in samples.all if key in each.arrays)


def tags(found: list[Sample]) -> str:
    """Return some tags, for a message."""
    more = ", ..." if len(found) > _SHOWN else ""
    return ", ".join(each.tag for each in found[:_SHOWN]) + more


def _labels(key: str, data: Data, samples: list[Sample], has_blank: bool, never_0: bool) -> Finding:
    assert data.sparse_dim is not None
    check, size = "labels of %r" % key, data.sparse_dim.size or 0
    values = np.concatenate([each.arrays[key].reshape(-1) for each in samples]).astype("int64")
    if not values.size:
        return Finding(
            check, FAILED, "no labels", "all sequences are empty. See returnn-tf data dump.", topic="data-files"
        )
    low, high = int(values.min()), int(values.max())
    found = "%d to %d of %d classes, %d sequences" % (low, high, size, len(samples))
    wrong = [each for each in samples if np.any((each.arrays[key] < 0) | (each.arrays[key] >= size))]
    if wrong:
        problem = "label %d in %s, but extern_data declares %d classes: 0 to %d." % (
            low if low < 0 else high, tags(wrong), size, size - 1,
        )  # fmt: skip
        if low < 0:
            problem += " Labels must not be negative: was 1, or a blank, subtracted once too often?"
        elif low >= 1 and high == size:
            problem += " The labels begin at 1: subtract 1 when the data is made, or declare dim %d." % (size + 1)
        elif has_blank and high == size:
            problem += " %d is the blank of the loss, which must not be in the target: remove it." % size
        else:
            problem += " Declare dim %d, or look for the wrong labels." % (high + 1)
        return Finding(check, FAILED, found, problem, topic="extern-data")
    if low == high and size > 1:
        return Finding(check, FAILED, found, "all labels are %d: there is nothing to learn." % low, topic="data-files")
    empty = [each for each in samples if each.arrays[key].ndim and not len(each.arrays[key])]
    if empty:
        text = "%d sequences have no labels, e.g. %s. Leave them out: min_seq_length = {%r: 1}." % (
            len(empty), tags(empty), key,
        )  # fmt: skip
        return Finding(check, WARNING, found, text, topic="targets")
    if never_0 and low == 1 and values.size > 50 * size and high == size - 1:
        text = "label 0 never occurs in %d labels. If yours begin at 1, subtract 1 when the data is made." % values.size
        return Finding(check, WARNING, found, text, topic="extern-data")
    if high < 0.5 * (size - 1) and values.size > 50 * size:
        text = "only the first %d of %d classes occur. Is dim of %r right?" % (high + 1, size, key)
        return Finding(check, WARNING, found, text, topic="extern-data")
    return ok(check, found)


def _features(key: str, samples: list[Sample]) -> Finding:
    check = "features of %r" % key
    broken = [each for each in samples if not np.isfinite(each.arrays[key]).all()]
    if broken:
        text = "NaN or Inf in %d sequences, e.g. %s. Look for a division or logarithm of 0 where the features are made."
        return Finding(check, FAILED, "NaN or Inf", text % (len(broken), tags(broken)), topic="nan")
    frames = _frames(key, samples)
    if not frames.size:
        return Finding(check, FAILED, "no frames", "all sequences are empty.", topic="data-files")
    mean, deviation = frames.mean(axis=0), frames.std(axis=0)
    found = "mean %.2g, deviation %.2g, %d sequences" % (frames.mean(), deviation.mean(), len(samples))
    constant = np.flatnonzero(deviation < 1e-6 * (np.abs(mean) + 1e-6))
    if len(constant) == frames.shape[1]:
        text = "all features are constant: there is nothing to learn from. Look at returnn-tf data dump."
        return Finding(check, FAILED, found, text, topic="data-files")
    if len(constant):
        text = "%d of %d features are constant, e.g. number %d." % (len(constant), frames.shape[1], constant[0])
        return Finding(check, WARNING, found, text + " Remove them, or mend what makes them.", topic="data-files")
    normal = deviation[deviation > 0].mean()
    if not 1 / _FAR**2 < normal < _FAR**2 or np.abs(mean).max() > _FAR * normal:
        text = (
            "the features are not normalised, which slows or prevents learning: means up to %.3g, deviations from %.3g "
            "to %.3g. Subtract the mean and divide by the deviation of each feature where the data is made, or put a "
            "batch_norm layer behind them." % (np.abs(mean).max(), deviation.min(), deviation.max())
        )
        return Finding(check, WARNING, found, text, topic="nan")
    return ok(check, found)


def _batches(samples: Samples) -> Finding:
    longest = max(samples.all, key=lambda each: each.longest)
    found = "longest sequence: %d frames" % longest.longest
    long = samples.too_long()
    if long:
        result = FAILED if len(long) == len(samples.all) else WARNING
        text = "%d of %d sequences are longer than batch_size, e.g. %s with %d frames." % (
            len(long), len(samples.all), long[0].tag, long[0].longest,
        )  # fmt: skip
        text += " batch_size counts frames, not sequences: raise it, or set max_seq_length or chunking."
        return Finding("batch_size", result, found, text, topic="batches")
    return ok("batch_size", found)


def _left_out(samples: Samples) -> Finding:
    """Count the sequences that the length limits leave out."""
    settings = ", ".join("%s = %s" % each for each in samples.length_limits.items())
    kept, total = samples.within_limits(), len(samples.all)
    found = "%s leaves out %d of %d sequences" % (settings, total - kept, total)
    if kept > total // 2:
        return ok("length limits", found)
    shortest, longest = (find(each.longest for each in samples.all) for find in (min, max))
    text = "%s. They have %d to %d frames: limits count frames, not seconds or samples." % (found, shortest, longest)
    return Finding("length limits", WARNING if kept else FAILED, found, text, topic="batches")
