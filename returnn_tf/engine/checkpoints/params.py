"""Assignment of stored values to the variables of a network, and checkpoints of a network without an optimizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import CheckpointDataError, nearest_name
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.checkpoint import GLOBAL_STEP, CheckpointInfo, StoredSpec, StoredValues
from returnn_tf.graph.rounded_variable import KINDS, check_values, part_names, stored_parts
from returnn_tf.logging.log import log

_MAX_LISTED = 30


def assign(
    variables: Mapping[str, Any], values: Mapping[str, NDArray[Any]], *, source: str, ignore_missing: bool = False
) -> None:
    """Set all variables, or none if anything does not fit. Values without a variable are ignored.

    :param variables: name -> ``tf.Variable``
    :param values: name -> array
    :param source: where the values come from, for the error
    :param ignore_missing: let variables without a value keep theirs, with a warning, unless all of them would
    :raises DataError: lists the missing parameters and those of another shape, and what is stored instead; or one that
        is rounded would get NaN or infinite numbers
    """
    missing = [name for name in variables if name not in values] if ignore_missing else []
    if missing and len(missing) < len(variables):
        listed = ", ".join(missing[:_MAX_LISTED]) + ", ..." * (len(missing) > _MAX_LISTED)
        log.warn("%s lacks %d parameters, which keep their values: %s" % (source, len(missing), listed))
        variables = {name: variable for name, variable in variables.items() if name in values}
    problems = misfits(variables, values.specs if isinstance(values, StoredValues) else values)
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
    check_values(variables, values)
    for name, variable in variables.items():
        variable.assign(values[name].astype(variable.dtype.as_numpy_dtype, copy=False))


def misfits(variables: Mapping[str, Any], values: Mapping[str, Union[NDArray[Any], StoredSpec]]) -> list[str]:
    """Return one line for each variable which is not stored, or with another shape or an incompatible dtype."""
    lines = []
    unused = [name for name in values if name not in variables]
    for name, variable in variables.items():
        shape = tuple(variable.shape)
        kinds = [kind.dtype for kind in KINDS.values() if part_names(name, kind)[0] in values]
        if name not in values and kinds:
            lines.append(
                "%s: %s %s is stored as %s there, for an export or another program; the checkpoint of the training has "
                "it as float" % (kinds[0], name, list(shape), kinds[0])
            )
        elif name not in values:
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


def save_checkpoint(net: Network, path: str, *, epoch: int = 0) -> None:
    """Write the parameters of a network and its step.

    Of those that are rounded it has what is stored, for graphs of exports; `load_checkpoint` refuses them.

    :param path: prefix of the files, e.g. ``out/net``; its folder is made if it is missing
    :param epoch: last complete epoch, for programs that look for it
    :raises DataError: the checkpoint can't be written
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    info = CheckpointInfo(epoch=epoch, step=int(net.global_step.numpy()), random_seed=0)
    checkpoint.save(path, stored_parts(net.plain_params()), {}, info)


def load_checkpoint(net: Network, path: str) -> None:
    """Set the parameters of a network, and its step if it is stored, from a checkpoint.

    :param path: prefix of the files
    :raises DataError: the checkpoint is missing or damaged, or does not fit the network; no parameter is changed then
    """
    problem = checkpoint.validate(path)
    if problem is not None:
        raise CheckpointDataError("The checkpoint %s can't be used: %s" % (path, problem))
    values = checkpoint.StoredValues(path, checked=True)
    assign(net.stored_params, values, source="the checkpoint %s" % path)
    if GLOBAL_STEP in values:
        net.global_step.assign(int(values[GLOBAL_STEP]))
