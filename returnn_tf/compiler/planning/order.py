"""The order in which layers are planned: dependencies first, and only what is needed of subnetworks. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.checks import cycle_error
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


@dataclasses.dataclass(frozen=True)
class _Open:
    """A layer, here or inside of a subnetwork, whose dependencies are being planned.

    :param rest: the further dependencies
    """

    ref: str
    rest: Iterator[str]


class PlanningOrder:
    """Finds the layers of one network that have to be planned for another one, in their order.

    :param planned: the layers that are, by name
    :param own_layer: returns the layer that is planned here for a reference, or None
    :param unit: what the network is planned with
    :param parse: see `Compilation.parse`
    :param in_loop: whether layers can use previous steps
    """

    def __init__(
        self,
        scope: Scope,
        planned: Collection[str],
        own_layer: Callable[[str], Optional[str]],
        unit: Unit,
        parse: Callable[[Any, str], dict[str, LayerSpec]],
        *,
        in_loop: bool,
    ) -> None:
        self._scope, self._planned, self._own_layer = scope, planned, own_layer
        self._unit, self._parse, self._in_loop = unit, parse, in_loop
        #: The layers, and parts of subnetworks, whose dependencies are being planned; the parts for which that is done.
        self.open: set[str] = set()
        self._complete: set[str] = set()

    def of(self, name: str) -> Iterator[LayerSpec]:
        """Yield the layers to plan for a layer, itself the last; each is to be planned before the next is asked for.

        :raises LayerError: they depend on each other in a cycle
        """
        if name in self.open:  # a layer between needs it already
            yield self._scope.specs[name]
            return
        stack = [self._enter(name)]
        while stack:
            for dep in stack[-1].rest:
                if dep in self.open:
                    self._check_cycle([entry.ref for entry in stack], dep)
                elif dep not in self._planned and dep not in self._complete:
                    stack.append(self._enter(dep))
                    break
            else:
                ref = stack.pop().ref
                if ref not in self._scope.specs:
                    self.open.discard(ref)
                    self._complete.add(ref)
                elif ref not in self._planned:
                    yield self._scope.specs[ref]

    def is_partial(self, name: str) -> bool:
        """Return whether a layer is not planned, and planning it whole might need what is being planned now."""
        return name not in self._planned and (name in self.open or bool(self._unit.in_progress))

    def _enter(self, ref: str) -> _Open:
        """Return a layer, or one inside of a subnetwork that is planned in parts, with its dependencies."""
        name = ref if ref in self._scope.specs else self._scope.layer_of(ref)
        assert name is not None
        spec = self._scope.specs[name]
        if spec.error is not None:
            raise spec.error
        self.open.add(ref)
        names = list(spec.references())
        if spec.cls.inner_network and (ref != name or self._unit.in_progress):
            names = list(references_of_part(spec, self._scope.part_of(ref, name) or "output", self._parse))
        if spec.options.get("target") and spec.options.get("n_out") is None and spec.options.get("out_dim") is None:
            target = spec.options.get("target")  # its template gives the output size
            names += [t for t in (target if isinstance(target, (list, tuple)) else [target]) if isinstance(t, str)]
        return _Open(ref, iter([own for own in map(self._dependency, names) if own is not None]))

    def _dependency(self, ref: str) -> Optional[str]:
        """Return the layer that has to be planned for a reference, or only the part that is needed of a subnetwork."""
        name = self._own_layer(ref)
        if name is not None and self._scope.specs[name].cls.inner_network and self.is_partial(name):
            return "/".join(filter(None, [name, self._scope.part_of(ref, name)]))
        return name

    def _check_cycle(self, refs: list[str], again: str) -> None:
        """Check that the last of some layers, each of which needs the next one, may need one of them again.

        It may where one of them is a network: layers inside are planned when they are needed, so that a cycle is found
        there.

        :raises LayerError: it may not
        """
        cycle = refs[refs.index(again) :] if again in refs else []
        specs = [self._scope.specs[self._scope.layer_of(ref) or ref] for ref in cycle]
        if cycle and not any(spec.cls.inner_network for spec in specs):
            raise cycle_error(self._scope.path, refs, again, in_loop=self._in_loop)
