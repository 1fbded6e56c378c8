"""Extra networks: ``extra.<name>:<layer>`` is a layer of a second network of the same dict, beside the main one.

The layers of an extra network are those of the main one, except for those that the dict redefines as
``extra.<name>:<layer>``. With ``search`` among the parts of the name (``extra.search:output``) that network searches.
Its parameters are those of the main network by name. A layer that neither differs nor has a source that differs is the
layer of the main network itself, computed once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.builder import NetworkBuilder
from returnn_tf.compiler.planning.extra_names import split_extra
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.config import nearest_name
from returnn_tf.graph.node import Node
from returnn_tf.graph.registry import LAYERS
from returnn_tf.logging.log import log


class ExtraNetworks:
    """All extra networks of a network, planned when they are needed.

    :param main: plans the network itself
    """

    def __init__(self, main: NetworkBuilder) -> None:
        self._main = main
        self._builders: dict[str, ExtraBuilder] = {}

    def __call__(self, prefix: str) -> ExtraBuilder:
        """Return the network of a prefix such as ``extra.search:``."""
        if prefix not in self._builders:
            _warn_of_misspelt_search(prefix)
            self._builders[prefix] = ExtraBuilder(self._main, prefix)
        return self._builders[prefix]


def _warn_of_misspelt_search(prefix: str) -> None:
    """Log if a part of the prefix looks like ``search`` misspelt: the network would not search."""
    for part in prefix[:-1].split(".")[1:]:
        if part != "search" and nearest_name(part, ["search"], cutoff=0.8) is not None:
            right = prefix.replace(part, "search")
            log.warn("The layers of %r make a network that does not search. Did you mean %r?" % (prefix, right))


class ExtraBuilder(NetworkBuilder):
    """Plans those layers of an extra network that differ from the main network.

    :param main: plans the main network
    :param prefix: of the names, e.g. ``extra.search:``
    """

    def __init__(self, main: NetworkBuilder, prefix: str) -> None:
        self._main, self._prefix = main, prefix
        self._explicit: set[str] = set()
        self._shared: dict[str, bool] = {}
        super().__init__(main.network, main.state, main.plan_steps)
        self.search = main.search or "search" in prefix[:-1].split(".")
        self.extra_network = main.extra_network

    def parse(self, network: Mapping[str, Any], path: str) -> dict[str, LayerSpec]:
        """Return the layers of the main network, with those replaced that this network redefines."""
        given = self.state.parse(network, path)
        specs = {name: dataclasses.replace(s, path=self._prefix + name) for name, s in given.items()}
        plain = {name: spec for name, spec in specs.items() if split_extra(name) is None}
        for name, spec in given.items():
            if name.startswith(self._prefix):
                name = name[len(self._prefix) :]
                self._explicit.add(name)
                plain[name] = dataclasses.replace(spec, name=name)
        return plain

    def planned(self, spec: LayerSpec, node: Node) -> None:
        """Register losses; only a layer that this network redefines may be a result."""
        if spec.name not in self._explicit and spec.options.get("is_output_layer"):
            spec = dataclasses.replace(spec, options={**spec.options, "is_output_layer": False})
        self.register(spec, node, is_result=False)

    def knows(self, ref: str) -> bool:
        """Return whether the reference names a layer."""
        return super()._local_name(self._inner_name(ref)) is not None

    def _local_name(self, ref: str) -> Optional[str]:
        name = super()._local_name(self._inner_name(ref))
        return None if name is None or self._is_shared(name) else name

    def resolve(self, ref: str, where: str) -> Node:
        """Resolve names as in any network; a layer that does not differ is that of the main network."""
        ref = self._inner_name(ref)
        if self.knows(ref) and self._local_name(ref) is None:
            return self._main.resolve(ref, where)
        return super().resolve(ref, where)

    def _inner_name(self, ref: str) -> str:
        return ref[len(self._prefix) :] if ref.startswith(self._prefix) else ref

    def _is_shared(self, name: str) -> bool:
        """Return whether the layer, and all that it needs, is the same as in the main network."""
        if name not in self._shared:
            self._shared[name] = True  # in a cycle the other layers decide
            seen = {name}
            todo = [name]
            while todo:
                current = todo.pop()
                if current in self._explicit or self._searches(self.specs[current]):
                    self._shared[name] = False
                    break
                for ref in [*self.specs[current].references(), *_targets(self.specs[current])]:
                    if split_extra(ref) is not None and not ref.startswith(self._prefix):
                        continue  # of another extra network, the same for both
                    local = NetworkBuilder._local_name(self, self._inner_name(ref))
                    if local is not None and local not in seen:
                        seen.add(local)
                        todo.append(local)
        return self._shared[name]

    def _searches(self, spec: LayerSpec) -> bool:
        """Return whether a search makes a difference to the layer itself: whether it has a loop."""
        return self.search != self._main.search and _has_loop({"class": spec.cls.class_name, **spec.options})


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
