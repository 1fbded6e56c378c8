"""Analysis of which layers of a step network must run inside, before or after the loop; from the names alone.

A layer must run step by step if it is on a cycle through a ``prev:`` reference, or between two such cycles. A layer
that depends on no cycle is computed before the loop for all steps at once, one that no cycle depends on after it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, TypeVar

from returnn_tf.layers.shared.nested import varies

T = TypeVar("T")


class Zone(enum.Enum):
    """The place where a layer of a step network is computed."""

    BEFORE = "before the loop"
    STEP = "in the loop"
    AFTER = "after the loop"


@dataclasses.dataclass(frozen=True)
class Links:
    """The references of one layer, by names in the same network.

    :param now: layers of the same step
    :param prev: layers of the previous step
    :param params: layers of which only parameters are used, so that they need not be computed before
    """

    now: Sequence[str]
    prev: Sequence[str]
    params: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Zones:
    """The zone of each needed layer, and the reason why layers are in the loop.

    :param reasons: layer -> the chain of references that keeps it in the loop
    """

    zones: dict[str, Zone]
    reasons: dict[str, str]


def find_zones(links: Mapping[str, Links], roots: Iterable[str], forced: Iterable[str] = ()) -> Zones:
    """Return the zones of all layers that the roots need.

    :param links: by layer name
    :param roots: outputs, layers with losses, the end layer
    :param forced: layers that must run in the loop in any case
    """
    needed = reachable(roots, lambda n: [*links[n].now, *links[n].prev, *links[n].params])
    on_cycle = {name for name in needed if _is_on_prev_cycle(name, links)} | (set(forced) & needed)
    from_cycle = {n for n in needed if any(c in _ancestors(n, links) for c in on_cycle)}
    to_cycle = reachable(on_cycle, lambda n: [*links[n].now, *links[n].prev])
    zones = {}
    for name in links:
        if name not in needed:
            continue
        if name in on_cycle or (name in from_cycle and name in to_cycle):
            zones[name] = Zone.STEP
        else:
            zones[name] = Zone.AFTER if name in from_cycle else Zone.BEFORE
    reasons = {n: _reason(n, links, set(forced)) for n, zone in zones.items() if zone is Zone.STEP}
    return Zones(zones, reasons)


def reachable(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """Return everything reachable, the starts included."""
    seen: set[T] = set()
    todo = list(starts)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += following(name)
    return seen


def _ancestors(name: str, links: Mapping[str, Links]) -> set[str]:
    """Return all layers that a layer depends on, in this or earlier steps; itself only if it is on a cycle."""
    return reachable([*links[name].now, *links[name].prev], lambda n: [*links[n].now, *links[n].prev])


def _is_on_prev_cycle(name: str, links: Mapping[str, Links]) -> bool:
    """Return whether a layer depends on itself in an earlier step; in the same one only layers inside of it do."""
    found = _ancestors(name, links)
    if name not in found:
        return False
    earlier = dict.fromkeys(prev for ref in found for prev in links[ref].prev)
    return any(prev == name or name in _ancestors(prev, links) for prev in earlier)


def _reason(name: str, links: Mapping[str, Links], forced: set[str]) -> str:
    """Return the shortest chain of references from the layer back to itself."""
    if not _is_on_prev_cycle(name, links):
        return "must run step by step" if name in forced else "lies between layers of the loop"
    todo: list[list[str]] = [[name]]  # chains of references, each from ``name``
    seen: set[str] = set()
    while todo:
        chain = todo.pop(0)
        current = chain[-1].replace("prev:", "")
        for ref in [*links[current].now, *("prev:" + n for n in links[current].prev)]:
            other = ref.replace("prev:", "")
            if other == name:
                return " <- ".join([*chain, ref])
            if other not in seen:
                seen.add(other)
                todo.append([*chain, ref])
    raise AssertionError("no cycle through %r" % name)


def varying_layers(network: Mapping[str, Any], links: Mapping[str, Links]) -> list[str]:
    """Return the layers with a memory or the step index, and those referenced by ``prev:``.

    :param network: layer name -> its options
    :param links: the references of each
    """
    prevs = {name for of in links.values() for name in of.prev}
    return [name for name, options in network.items() if name in prevs or varies(options)]
