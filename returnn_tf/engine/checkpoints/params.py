"""Assignment of stored values to the variables of a network, with a clear error where they don't fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CheckpointDataError, nearest_name
from returnn_tf.engine.checkpoints.checkpoint import GLOBAL_STEP

_MAX_LISTED = 30


def assign(variables: Mapping[str, Any], values: Mapping[str, NDArray[Any]], *, source: str) -> None:
    """Set all variables, or none if anything does not fit. Values without a variable are ignored.

    :param variables: name -> ``tf.Variable``
    :param values: name -> array
    :param source: where the values come from, for the error
    :raises DataError: lists the missing parameters and those of another shape, and what is stored instead
    """
    problems = misfits(variables, values)
    if problems:
        unknown = sorted(name for name in values if name not in variables and name != GLOBAL_STEP)
        text = ["%s does not fit the network:" % source] + problems[:_MAX_LISTED]
        if len(problems) > _MAX_LISTED:
            text.append("... and %i more" % (len(problems) - _MAX_LISTED))
        if unknown:
            more = " and %i more" % (len(unknown) - _MAX_LISTED) if len(unknown) > _MAX_LISTED else ""
            text.append("stored, but unknown to the network: %s%s" % (", ".join(unknown[:_MAX_LISTED]), more))
        text.append("Use the network of that checkpoint, or another checkpoint.")
        raise CheckpointDataError("\n  ".join(text))
    for name, variable in variables.items():
        variable.assign(values[name].astype(variable.dtype.as_numpy_dtype, copy=False))


def misfits(variables: Mapping[str, Any], values: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return one line for each variable which is not stored, or with another shape or an incompatible dtype."""
    lines = []
    unused = [name for name in values if name not in variables]
    for name, variable in variables.items():
        shape = tuple(variable.shape)
        if name not in values:
            near = nearest_name(name, unused, cutoff=0.8)
            hint = "" if near is None else " (stored is %r %s)" % (near, list(values[near].shape))
            lines.append("missing: %s %s%s" % (name, list(shape), hint))
        elif tuple(values[name].shape) != shape:
            lines.append("shape: %s is %s here, stored %s" % (name, list(shape), list(values[name].shape)))
        elif not np.can_cast(values[name].dtype, variable.dtype.as_numpy_dtype, casting="same_kind"):
            lines.append("dtype: %s is %s here, stored %s" % (name, variable.dtype.name, values[name].dtype))
    return lines


def assign_matching(variables: Mapping[str, Any], values: Mapping[str, NDArray[Any]]) -> list[str]:
    """Set the variables which fit; return the names of those which keep their value."""
    left: dict[str, Any] = {}
    for name, variable in variables.items():
        if misfits({name: variable}, values):
            left[name] = variable
        else:
            variable.assign(values[name].astype(variable.dtype.as_numpy_dtype, copy=False))
    return sorted(left)
