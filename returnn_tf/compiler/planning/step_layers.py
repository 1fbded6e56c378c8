"""The layers of a step network as configured: their dependencies, which are wanted, and where each can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.code_references import asks_for_step
from returnn_tf.compiler.planning.parse import LayerSpec, has_loss
from returnn_tf.compiler.planning.zones import Links, Zone, Zones, find_zones, reachable, varying_layers
from returnn_tf.graph.layer import Node
from returnn_tf.layers.rec.hidden_state import asks_for_state
from returnn_tf.layers.rec.rec import RecLayer
from returnn_tf.layers.shared.nested import has_inner_prev


def rec_layer(owner: Node) -> RecLayer:
    """Return the layer of a node that is a loop."""
    assert isinstance(owner.layer, RecLayer)
    return owner.layer


class StepLayers:
    """The layers of a step network before they are planned.

    :param layer: the `rec` layer
    :param has_source: whether it has a source
    :param specs: of the layers inside
    :param losses: whether losses of layers in loops are computed
    :param knows_axis: whether the option ``axis`` names an axis with known lengths
    :param whole: whether no layer is moved out of the loop
    """

    def __init__(
        self,
        layer: RecLayer,
        has_source: bool,
        specs: Mapping[str, LayerSpec],
        *,
        losses: bool,
        search: bool,
        knows_axis: bool = False,
        whole: bool = False,
    ) -> None:
        self._layer = layer
        self._has_source = has_source
        self._whole = whole or layer.optimize_move_layers_out is False
        self._losses, self.knows_axis = losses, knows_axis
        self.search = search
        self.target: Any = layer.target
        assert isinstance(layer.unit, dict)
        self.network = layer.unit
        self.specs = specs
        #: The references of each layer.
        self.links: dict[str, Links] = {name: self._links(spec) for name, spec in specs.items()}
        #: Whether the layer "end" decides when to stop.
        self.has_end: bool = self._ends_by_layer()
        #: Whether only the target decides when to stop.
        self.length_of_target = not (has_source or "end" in specs or layer.axis is not None) and bool(layer.target)
        #: The layers whose values are wanted for all steps.
        self.outputs: list[str] = self._find_outputs()
        self.zones: Zones = self._find_zones()

    def _find_zones(self) -> Zones:
        links = self.links
        forced = []
        for name, spec in self.specs.items():
            if self._whole or spec.cls.only_in_step() or name == "end" or asks_for_step(spec.options):
                if not self.follows_target(spec):
                    forced.append(name)
            cells = [*links[name].now, *links[name].prev]
            if cells and (spec.cls.takes_hidden_state or asks_for_state(spec.cls, spec.options)):
                forced += [name, *cells]  # for all steps at once, a cell only gives its last state
            forced += [name] if self._decides_by_step(spec) else []
        roots = self.outputs + (["end"] if self.has_end else [])
        zones = find_zones(links, roots, forced)
        if not self.has_end:
            return zones
        # The number of steps is known only after the loop, so nothing can be computed for each of them before it.
        followers = [name for name, spec in self.specs.items() if self.follows_target(spec)]
        candidates = [*varying_layers(self.network, links), *self._users_of_source(), *followers]
        varying = [name for name in candidates if zones.zones.get(name) is Zone.BEFORE]
        return find_zones(links, roots, forced + varying) if varying else zones

    def _decides_by_step(self, spec: LayerSpec) -> bool:
        """Return whether a layer needs a value of one step alone that differs from step to step."""
        refs = list(spec.cls.references_to_one_step(spec.options))
        if {":i", "data", "data:source", *self._target_keys()} & set(refs):
            return True
        roots = [name for ref in refs for name in [self.layer_of(_without_prev(ref))] if name]
        if not roots:
            return False
        found = reachable(roots, lambda name: [*self.links[name].now, *self.links[name].prev])
        unstacked = [name for name, other in self.specs.items() if other.cls.unstacks_frames]
        return bool(
            found
            & {
                *varying_layers(self.network, self.links),
                *self._users_of_source(),
                *unstacked,
                *self._users_of_target(),
            }
        )

    def _users_of_target(self) -> list[str]:
        """Return the layers that refer to the target of the loop."""
        return [n for n, spec in self.specs.items() if self._target_keys() & set(spec.references())]

    def _target_keys(self) -> set[str]:
        targets = [self.target] if isinstance(self.target, str) else list(self.target or ())
        return {"data:%s" % name for name in targets}

    def _users_of_source(self) -> list[str]:
        """Return the layers that refer to the source of the loop."""
        return [n for n, spec in self.specs.items() if {"data", "data:source"} & set(spec.references())]

    def follows_target(self, spec: LayerSpec) -> bool:
        """Return whether a layer takes its values from the target."""
        return spec.cls.follows_target(spec.options, self.search)

    def _links(self, spec: LayerSpec) -> Links:
        now: list[str] = []
        prev: list[str] = []
        refs = [] if self.follows_target(spec) else list(spec.references())
        for ref in refs:
            is_prev = ref.startswith("prev:")
            name = self.layer_of(_without_prev(ref))
            if name is not None:  # else planning the layer will report the mistake, if something needs the layer
                (prev if is_prev else now).append(name)
        if has_inner_prev(spec.cls, spec.options):
            prev.append(spec.name)
        params = [self.layer_of(ref) for ref in spec.param_references()]
        return Links(now, prev, [name for name in params if name is not None])

    def layer_of(self, ref: str) -> Optional[str]:
        """Return the layer of the step network that a reference names, or None if it is outside."""
        if ref.startswith("layer:"):
            ref = ref[len("layer:") :]
        while ref not in self.specs and "/" in ref:
            ref = ref.rpartition("/")[0]
        return ref if ref in self.specs else None

    def with_loss(self, spec: LayerSpec) -> bool:
        """Return whether the loss of a layer of the loop is computed: only to train or evaluate, like the reference."""
        return self._losses and not self.search and has_loss(spec, False)

    def omitted_losses(self) -> list[str]:
        """Return the paths of the layers whose losses are not computed though this is no search."""
        return [] if self._losses or self.search else [s.path for s in self.specs.values() if has_loss(s, False)]

    def _find_outputs(self) -> list[str]:
        """Return the layers whose values are wanted for all steps."""
        names = ["output"]
        for name, spec in self.specs.items():
            if spec.options.get("is_output_layer") or spec.options.get("need_last") or self.with_loss(spec):
                names.append(name)
        return list(dict.fromkeys(names))

    def _ends_by_layer(self) -> bool:
        """Return whether the layer "end" decides when to stop: it does unless the target or a known axis does.

        The target does in training, and in a search that always keeps it ("cheating"). A source never does.
        """
        follows_target = not self.search or any(s.options.get("cheating") for s in self.specs.values())
        return "end" in self.specs and not self.knows_axis and not (self._layer.target and follows_target)

    def outside_references(self) -> tuple[list[str], list[str]]:
        """Return the layers outside that the loop needs in any mode, as their parameters are in every checkpoint.

        The second list are those of which it only needs the parameters.
        """

        def refs(name: str) -> list[str]:
            spec = self.specs[name]
            names = [self.layer_of(r.replace("prev:", "")) for r in [*spec.references(), *spec.param_references()]]
            return [n for n in names if n is not None]

        roots = ["output", "end"] + [n for n, s in self.specs.items() if has_loss(s, False)]
        used = reachable([n for n in roots if n in self.specs], refs)
        options = {"unit": {n: self.network[n] for n in self.specs if n in used}}
        return list(type(self._layer).references(options)), list(type(self._layer).param_references(options))


def _without_prev(ref: str) -> str:
    return ref[len("prev:") :] if ref.startswith("prev:") else ref
