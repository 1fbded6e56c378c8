"""Transfer of parameters from one network to the next.

A growing parameter grows in each part of its axes: the gates of a cell, the sources which are concatenated in an input.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.tensor.parts import Part, Parts, total_size

_MAX_LISTED = 4
Region = tuple[tuple[slice, ...], tuple[slice, ...]]
_MAX_DEPTH = 50
Block = tuple[slice, slice]


@dataclass
class Transfer:
    """Treatment of each parameter, by name."""

    copied: list[str] = field(default_factory=list)  # unchanged
    grown: dict[str, list[Region]] = field(default_factory=dict)  # (place in the old one, place in the new one)
    fresh: list[str] = field(default_factory=list)  # new ones: they keep their initial value
    reset: list[str] = field(default_factory=list)  # also in the old network, but reinitialised
    misfits: dict[str, str] = field(default_factory=dict)  # those in `reset` without a copy mode: "[3] -> [4]"
    dropped: list[str] = field(default_factory=list)  # only in the old network

    def __str__(self) -> str:
        kinds = [
            ("copied", self.copied, False),
            ("copied in part", list(self.grown), True),
            ("new", self.fresh, True),
            ("reinitialised", self.reset, True),
            ("dropped", self.dropped, True),
        ]
        parts = []
        for kind, names, listed in kinds:
            if names:
                shown = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
                parts.append("%d %s%s" % (len(names), kind, " (%s)" % shown if listed else ""))
        return ", ".join(parts) or "none"


def plan_transfer(old: Plan, new: Plan, mode_of: Callable[[str], Optional[str]]) -> Transfer:
    """Decide on the treatment of each parameter; ``mode_of`` gives the copy mode for the path of a layer."""
    old_params, new_params = old.params, new.params
    transfer = Transfer(dropped=[name for name in old_params if name not in new_params])
    old_axes: dict[str, Any] = {}
    new_axes: dict[str, Any] = {}
    for name, spec in new_params.items():
        before = old_params.get(name)
        mode = mode_of(spec.layer_path)
        if before is None:
            transfer.fresh.append(name)
        elif mode == "reset":
            transfer.reset.append(name)
        elif before.shape == spec.shape:
            transfer.copied.append(name)
        elif mode == "subset" and len(before.shape) == len(spec.shape):
            old_axes, new_axes = old_axes or axes_of_params(old), new_axes or axes_of_params(new)
            transfer.grown[name] = _regions(old_axes[name], new_axes[name])
        else:
            transfer.reset.append(name)
            if mode is None:
                transfer.misfits[name] = "%s -> %s" % (list(before.shape), list(spec.shape))
    return transfer


def _regions(old: list[Any], new: list[Any]) -> list[Region]:
    per_axis = [common_blocks(a, b) for a, b in zip(old, new)]
    return [
        (tuple(block[0] for block in blocks), tuple(block[1] for block in blocks))
        for blocks in itertools.product(*per_axis)
    ]


def misfit_text(transfer: Transfer, before: str, now: str) -> Optional[str]:
    """Return a warning about parameters that are initialised again though no copy mode says so; None without any.

    :param before: name of the old network
    :param now: name of the new network
    """
    if not transfer.misfits:
        return None
    shown = ["%s (%s)" % item for item in list(transfer.misfits.items())[:_MAX_LISTED]]
    return (
        "From %s to %s, parameters with another shape are initialised again: %s%s. copy_param_mode 'subset' copies "
        "the block that both have, 'ifpossible' says that this is intended."
        % (before, now, ", ".join(shown), ", ..." if len(transfer.misfits) > len(shown) else "")
    )


def carried_values(
    transfer: Transfer, values: Mapping[str, NDArray[Any]], initial: Callable[[str], NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the values of those parameters of the new network which do not keep their initial value.

    :param values: of the old network, by name
    :param initial: name -> initial value in the new network
    """
    result = {name: values[name] for name in transfer.copied}
    for name, regions in transfer.grown.items():
        array = np.array(initial(name))
        for source, target in regions:
            array[target] = values[name][source]
        result[name] = array
    return result


def axes_of_params(plan: Plan) -> dict[str, list[Parts]]:
    """Return the parts of each axis, in order, for each parameter by name."""
    return {spec.name: _axes(node, spec) for node in plan.all_nodes() for spec in node.owned}


def _axes(node: Node, spec: ParamSpec) -> list[Parts]:
    inputs = [part for source in node.sources for part in _features(source)]
    name = spec.name[len(node.scope) :].lstrip("/")
    axes = []
    for axis, size in enumerate(spec.shape):
        parts = node.layer.param_parts(name, spec.shape, axis, inputs)
        axes.append(parts if parts and total_size(parts) == size else [Part("", size)])
    return axes


def _features(node: Node, depth: int = 0) -> Parts:
    """Return the parts of the feature axis of a layer's output, or of the labels of a sparse one."""
    dim = node.output.dim or 0
    if depth < _MAX_DEPTH:
        if node.layer.is_connector:
            of = node.layer.of
            inner = of if isinstance(of, Node) else node.sources[0] if node.sources else None
            if inner is not None and (inner.output.dim or 0) == dim:
                return _features(inner, depth + 1)
        elif node.layer.joins_features:
            parts = [part for source in node.sources for part in _features(source, depth + 1)]
            if total_size(parts) == dim:
                return parts
    parts = node.layer.feature_parts()
    if len(parts) > 1 and total_size(parts) == dim:
        return [Part("%s %s" % (node.path, part.label), part.size) for part in parts]
    return [Part(node.path, dim)]


def common_blocks(old: Parts, new: Parts) -> list[Block]:
    """Return (old range, new range) of an axis for each part that both have.

    Parts are matched by label; those without a counterpart of the same label, by order.
    """
    old_at, new_at = _starts(old), _starts(new)
    pairs: list[tuple[int, int]] = []
    rest = list(range(len(old)))
    unmatched: list[int] = []
    for j, part in enumerate(new):
        i: Optional[int] = next((i for i in rest if old[i].label == part.label), None)
        if i is None:
            unmatched.append(j)
        else:
            rest.remove(i)
            pairs.append((i, j))
    pairs += zip(rest, unmatched)
    blocks = []
    for i, j in pairs:
        size = min(old[i].size, new[j].size)
        blocks.append((slice(old_at[i], old_at[i] + size), slice(new_at[j], new_at[j] + size)))
    return blocks


def _starts(parts: Parts) -> list[int]:
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += part.size
    return starts
