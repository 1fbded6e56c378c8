"""Transfer of parameters from one network to the next."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.engine.pretrain.param_axes import axes_of_params, common_blocks

_MAX_LISTED = 4
Region = tuple[tuple[slice, ...], tuple[slice, ...]]


@dataclass
class Transfer:
    """What happens to each parameter, by name."""

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
    """Decide what happens to each parameter.

    :param mode_of: path of a layer -> copy mode of its parameters
    """
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
