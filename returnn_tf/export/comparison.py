"""Compares the outputs of an exported graph with those of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.export.tensor_info import TensorInfo


def difference(
    infos: Mapping[str, TensorInfo],
    expected: Mapping[str, NDArray[Any]],
    got: Mapping[str, NDArray[Any]],
    tolerance: float,
) -> Optional[str]:
    """Return the first difference as a phrase that names output, amount and place; None if there is none.

    Values are compared within the lengths of their sequences; what is behind has no meaning.

    :param infos: the outputs by name
    :param tolerance: for floats, relative to the largest absolute value of the output (at least 1); labels, lengths
        and shapes must be equal
    """
    for name, info in infos.items():
        if name not in got:
            return "there is no output %r" % name
        found = _difference(info, expected, np.asarray(got[name]), tolerance)
        if found:
            return "the output %r %s" % (name, found)
    return None


def _difference(
    info: TensorInfo, expected: Mapping[str, NDArray[Any]], got: NDArray[Any], tolerance: float
) -> Optional[str]:
    wanted = expected[info.name]
    if got.shape != wanted.shape:
        return "has the shape %s, but %s is right" % (list(got.shape), list(wanted.shape))
    if got.dtype != wanted.dtype:
        return "has the type %s, but %s is right" % (got.dtype, wanted.dtype)
    valid = valid_frames(info, expected)
    if wanted.dtype.kind not in "fc":
        bad = (got != wanted) & valid
        amount = bad
    else:
        valid = valid & ~((got == wanted) | (np.isnan(got) & np.isnan(wanted)))
        amount = np.where(valid, np.abs(np.where(valid, got, 0) - np.where(valid, wanted, 0)), 0)
        finite = np.abs(wanted[np.isfinite(wanted)])
        bad = valid & ~(amount <= tolerance * max(1.0, float(finite.max(initial=0.0))))
    if not bad.any():
        return None
    place = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(amount, nan=np.inf), 0))), bad.shape)
    return "is %s at %s, but %s is right" % (got[place], [int(index) for index in place], wanted[place])


def valid_frames(info: TensorInfo, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return a mask that broadcasts against an output: False behind the end of sequences.

    :param values: outputs by name, with the lengths
    """
    value = values[info.name]
    mask = np.ones(value.shape, bool)
    for axis, name in info.lengths.items():
        lens = values[name]
        if info.axes[:1] != ("B",) or lens.ndim not in range(1, axis + 1) or len(lens) != len(value):
            continue
        frames = np.arange(value.shape[axis]).reshape([-1 if i == axis else 1 for i in range(value.ndim)])
        mask &= frames < lens.reshape([*lens.shape, *[1] * (value.ndim - lens.ndim)])
    return mask
