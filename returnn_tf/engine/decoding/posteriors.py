"""Log posteriors, and log priors of their labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.core.safe_files import read_text, wanted_by

_TOLERANCE = 0.05  # of sums over thousands of labels in float16
_LOWEST = 1e-30


def log_posteriors(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Return the logs of probabilities, or of what is one already.

    :param values: [frames, labels]
    :param where: begin of errors
    :raises DataError: they are neither
    """
    values = np.asarray(values, "float32")
    if not values.size:
        return values
    if np.isnan(values).any():
        raise CtcDataError("%s has NaN: the model or its input is broken." % where)
    if values.min() >= 0:
        sums, logs = values.sum(axis=1), np.log(np.maximum(values, _LOWEST))
    else:
        most = values.max(axis=1, keepdims=True)
        with np.errstate(over="ignore", invalid="ignore"):
            sums, logs = np.exp(most[:, 0]) * np.exp(values - most).sum(axis=1), values
    if not np.all(np.abs(sums - 1) <= _TOLERANCE):
        raise CtcDataError(
            "%s has neither probabilities nor their logs: those of a frame sum up to %.3g. Name a layer with "
            "softmax or log_softmax." % (where, sums[np.abs(sums - 1).argmax()])
        )
    result: NDArray[np.float32] = np.ascontiguousarray(logs, "float32")
    return result


def read_log_priors(path: str, num_labels: int) -> NDArray[np.float32]:
    """Read log priors, a number in each line.

    :raises DataError: the file is missing, or has other numbers
    """
    with wanted_by("priors"):
        text = read_text(path)
    try:
        priors = np.array([float(field) for field in text.split()], "float64")
    except ValueError as exc:
        raise CtcDataError("Priors %r: %s. The file has the log of a prior in each line." % (path, exc)) from exc
    if len(priors) != num_labels:
        raise CtcDataError(
            "Priors %r has %d numbers, but the model has %d labels. Compute them for this layer by task compute_priors."
            % (path, len(priors), num_labels)
        )
    total = float(np.exp(priors).sum())
    if np.isnan(priors).any() or not abs(total - 1) <= _TOLERANCE:
        raise CtcDataError(
            "Priors %r: these are no logs of probabilities, which sum up to 1, but to %.3g. Task compute_priors "
            "writes logs." % (path, total)
        )
    result: NDArray[np.float32] = priors.astype("float32")
    return result
