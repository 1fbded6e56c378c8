"""The meaning of names in a network dict; from the dict alone, so nothing is planned here."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.parse import LayerSpec, split_extra
from returnn_tf.config import did_you_mean
from returnn_tf.graph.registry import LAYERS


class Scope:
    """The layers of one network dict, by name.

    :param specs: the layers
    :param path: path of the layer that the network is part of, "" at the top
    :param inputs: the data keys of a nested network; None: it has those of the network around it
    :param extern: the data keys of the whole network
    """

    def __init__(
        self,
        specs: dict[str, LayerSpec],
        path: str = "",
        inputs: Optional[Collection[str]] = None,
        extern: Collection[str] = (),
    ) -> None:
        self.specs = specs
        self.path = path
        self._inputs = inputs
        self._extern = extern
        #: Data key -> the layer that provides it.
        self.registered = {
            spec.options["register_as_extern_data"]: name
            for name, spec in specs.items()
            if spec.options.get("register_as_extern_data") and spec.error is None
        }

    def own_name(self, ref: str) -> str:
        """Return a reference without a prefix that means this network."""
        return ref[len("layer:") :] if ref.startswith("layer:") else ref

    def layer_of(self, ref: str) -> Optional[str]:
        """Return the layer of this dict that must be planned for a reference, or None."""
        ref = self.own_name(ref)
        if ref in self.specs:
            return ref
        if ref.startswith("data:") and ref[len("data:") :] in self.registered and not self._is_input(ref[5:]):
            return self.registered[ref[len("data:") :]]
        if ref in self.registered:
            return self.registered[ref]
        head = ref
        while "/" in head:
            head = head.rpartition("/")[0]
            if head in self.specs:
                return head
        return None

    def part_of(self, ref: str, name: str) -> str:
        """Return the rest of a reference to a layer inside of the layer of this name, or "" for that layer itself."""
        ref = self.own_name(ref)
        return ref[len(name) + 1 :] if ref.startswith(name + "/") else ""

    def is_shared(self, ref: str) -> bool:
        """Return whether a reference means a layer of another network of the same dict, see `ExtraScope`."""
        return False

    def shared_networks(self, ref: str) -> list[str]:
        """Return the subnetworks of another network of the same dict that a reference to one of its layers needs."""
        return []

    def is_result(self, spec: LayerSpec) -> bool:
        """Return whether the value of a layer of this network is a result."""
        return bool(spec.options.get("is_output_layer")) or (spec.name == "output" and not self.path)

    def name_outside(self, name: str, around: Scope, where: str) -> str:
        """Return the name that a layer of this network has in the network around.

        :raises LayerError: there is no such layer
        """
        if self.layer_of(name) is None:
            raise LayerError(
                "%s: there is no layer %r in this network, so 'prev:%s' is undefined. %s"
                % (where, name, name, did_you_mean(name, self.specs)),
                topic="sources",
            )
        return "%s/%s" % (self.path[len(around.path) :].lstrip("/"), name)

    def input_keys(self) -> list[str]:
        """Return all data keys."""
        return sorted(set(self._inputs or ()) | set(self._extern))

    def known_names(self) -> list[str]:
        """Return the names for references: layers and data keys."""
        return [*self.specs, *("data:%s" % key for key in self.input_keys()), "data"]

    def _is_input(self, key: str) -> bool:
        return (self._inputs is not None and key in self._inputs) or key in self._extern


class ExtraScope(Scope):
    """The layers of an extra network: ``extra.<name>:<layer>`` is a layer of a second network of the same dict.

    They are those of the main network, except for those that the dict redefines as ``extra.<name>:<layer>``. With
    ``search`` among the parts of the name (``extra.search:output``) that network searches. Its parameters are those of
    the main network by name. A layer that neither differs nor has a source that differs is the layer of the main
    network itself, computed once.

    :param prefix: of the names, e.g. ``extra.search:``
    :param specs: all layers of the dict, those of extra networks included
    :param searches: whether this network searches, while the main one does not
    """

    def __init__(
        self, prefix: str, specs: Mapping[str, LayerSpec], extern: Collection[str] = (), *, searches: bool
    ) -> None:
        self._prefix = prefix
        self._searches = searches
        self._shared: dict[str, bool] = {}
        plain = {n: dataclasses.replace(s, path=prefix + n) for n, s in specs.items() if split_extra(n) is None}
        own = {name[len(prefix) :]: spec for name, spec in specs.items() if name.startswith(prefix)}
        plain.update({name: dataclasses.replace(spec, name=name) for name, spec in own.items()})
        #: The layers that this network redefines.
        self._explicit = frozenset(own)
        super().__init__(plain, extern=extern)

    def own_name(self, ref: str) -> str:
        """Return a reference without the prefix of this network."""
        return super().own_name(ref[len(self._prefix) :] if ref.startswith(self._prefix) else ref)

    def layer_of(self, ref: str) -> Optional[str]:
        """Return the layer of this network that a reference means; None for one of the main network."""
        name = super().layer_of(ref)
        return None if name is None or self._is_same(name) else name

    def is_shared(self, ref: str) -> bool:
        """Return whether a reference means a layer of the main network."""
        name = super().layer_of(ref)
        return name is not None and self._is_same(name)

    def shared_networks(self, ref: str) -> list[str]:
        """Return the subnetworks among a layer of the main network and all that it needs."""
        found: dict[str, None] = {}
        todo = [super().layer_of(ref)]
        while todo:
            name = todo.pop()
            if name is not None and name not in found:
                found[name] = None
                todo += [super(ExtraScope, self).layer_of(other) for other in self.specs[name].references()]
        return [name for name in found if self.specs[name].cls.inner_network]

    def is_result(self, spec: LayerSpec) -> bool:
        """Return whether the value of a layer is a result: only one that this network redefines may be one."""
        return spec.name in self._explicit and bool(spec.options.get("is_output_layer"))

    def _is_same(self, name: str) -> bool:
        """Return whether the layer, and all that it needs, is the same as in the main network."""
        if name not in self._shared:
            self._shared[name] = True  # in a cycle the other layers decide
            seen = {name}
            todo = [name]
            while todo:
                current = todo.pop()
                spec = self.specs[current]
                # a search makes a difference to a layer itself if it has a loop
                if current in self._explicit or (
                    self._searches and _has_loop({"class": spec.cls.class_name, **spec.options})
                ):
                    self._shared[name] = False
                    break
                for ref in [*spec.references(), *_targets(spec)]:
                    if split_extra(ref) is not None and not ref.startswith(self._prefix):
                        continue  # of another extra network, the same for both
                    local = super().layer_of(ref)
                    if local is not None and local not in seen:
                        seen.add(local)
                        todo.append(local)
        return self._shared[name]


def _targets(spec: LayerSpec) -> list[str]:
    target = spec.options.get("target")
    return [t for t in (target if isinstance(target, (list, tuple)) else [target]) if isinstance(t, str)]


def _has_loop(value: Any) -> bool:
    """Return whether a layer dict, or a network in it, has a loop."""
    if isinstance(value, Mapping):
        cls = LAYERS.find(value.get("class"))
        if cls is not None and cls.iterates_unit and isinstance(value.get("unit"), Mapping):
            return True
        return any(_has_loop(item) for item in value.values())
    return False
