"""Layers of networks that use layers inside of each other, planned as they are needed. No TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.scope import Scope


@dataclasses.dataclass
class Unit:
    """A network that is planned as a whole, with the subnetworks inside, whose layers may need each other.

    Dependencies are between layers: while one is planned, only the layers of a subnetwork that it needs are. The
    subnetwork is completed afterwards.

    :param in_progress: the number of layers being planned that are no subnetworks, each for the one before
    :param partial: these plan the further layers of the subnetworks of which only some are planned
    """

    in_progress: int = 0
    partial: list[Callable[[], None]] = dataclasses.field(default_factory=list)

    def complete(self, start: int = 0) -> None:
        """Plan the rest of the subnetworks, from an index on."""
        while len(self.partial) > start:
            self.partial.pop(start)()


def references_of_part(
    spec: LayerSpec, part: str, parse: Callable[[Any, str], dict[str, LayerSpec]]
) -> tuple[str, ...]:
    """Return the layers outside of a subnetwork that must be planned before a layer inside of it.

    :param part: the layer inside
    :param parse: see `Compilation.parse`
    """
    specs = parse(spec.options[spec.cls.inner_network], spec.path)
    scope = Scope(specs, spec.path, ())
    outside: dict[str, None] = {}
    seen: set[str] = set()
    todo = [part]
    while todo:
        ref = todo.pop()
        if ref in seen:
            continue
        seen.add(ref)
        name = scope.layer_of(ref)
        if ref.startswith("base:"):
            outside[ref[len("base:") :]] = None
        elif name is None:  # data of this network
            outside.update(dict.fromkeys(s if isinstance(s, str) else s[0] for s in spec.sources))
        elif specs[name].error is None and specs[name].cls.inner_network:
            todo += references_of_part(specs[name], scope.part_of(ref, name) or "output", parse)
        else:
            todo += specs[name].references()
    return tuple(outside)
