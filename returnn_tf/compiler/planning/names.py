"""What names in a network mean: its layers and inputs, those of the networks around it, and targets."""

from __future__ import annotations

from typing import Optional

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.extra_names import split_extra
from returnn_tf.compiler.planning.level import OPEN, NetworkLevel
from returnn_tf.compiler.planning.parse import describe_place
from returnn_tf.compiler.planning.sub_output import SubOutputLayer
from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.graph.node import Node
from returnn_tf.graph.source import SourceLayer
from returnn_tf.tensor import SEQ_TAG, Data, Dim, batch_dim

ERROR_TOPIC = "sources"


class Names(NetworkLevel):
    """A level of a network that resolves names."""

    def _local_name(self, ref: str) -> Optional[str]:
        """Return the key in this network's dict that must be planned for a reference, or None."""
        if ref.startswith("layer:"):
            ref = ref[len("layer:") :]
        if ref in self.specs:
            return ref
        if ref.startswith("data:") and ref[len("data:") :] in self._registered and not self._is_input(ref[5:]):
            return self._registered[ref[len("data:") :]]
        if ref in self._registered:
            return self._registered[ref]
        head = ref
        while "/" in head:
            head = head.rpartition("/")[0]
            if head in self.specs:
                return head
        return None

    def _is_input(self, key: str) -> bool:
        return (self.inputs is not None and key in self.inputs) or key in self.state.extern_data

    def resolve(self, ref: str, where: str) -> Node:
        """Implement `Scope.resolve`."""
        if ref.startswith("layer:"):
            ref = ref[len("layer:") :]
        if ref.startswith("base:"):
            if self.parent is None:
                raise LayerError(
                    "%s: %r refers to the outer network, but this network is not nested in a layer." % (where, ref)
                )
            return self.parent.resolve(ref[len("base:") :], where)
        if ref.startswith("prev:"):
            in_loop = self.in_step or self.loop_dim is not None
            if in_loop and self.parent is not None and self.owner is not None and self.owner.layer.steps_with_loop:
                return self.parent.resolve("prev:" + self._name_outside(ref[len("prev:") :], where), where)
            if in_loop:
                raise LayerError(
                    "%s: %r needs the previous step, but the network that it is in is not computed in each step. Name "
                    "a layer of the loop instead: 'base:%s' means that of the network around." % (where, ref, ref)
                )
            raise LayerError(
                "%s: %r needs the previous step of a loop, but this network is not in a 'rec' layer." % (where, ref),
                topic="loops",
            )
        extra = split_extra(ref)
        if extra is not None and self.extra_network is not None:
            return self.extra_network(extra[0]).resolve(extra[1], where)
        local = self._local_name(ref)
        if local is not None:
            node = self.node(local)
            rest = ref[len(local) + 1 :] if ref.startswith(local + "/") else ""
            return self._sub_node(node, rest, where) if rest else node
        if ref == "data" or ref.startswith("data:"):
            return self._input(ref.partition(":")[2] or "data", where)
        known = list(self.specs) + ["data:%s" % key for key in self._input_keys()] + ["data"]
        hint = "Write 'data:%s' for the data key." % ref
        read = self.state.extern_data.get("data")
        if (
            ref in self.state.extern_data
            and self.state.extern_data[ref].sparse
            and read is not None
            and not read.sparse
        ):
            hint = "Write 'data:%s' for the data key with these labels, or 'data' for the features." % ref
        if ref not in self._input_keys():
            hint = self.state.key_hint(ref, known)
        if self.parent is not None and (ref in self.parent.specs or extra is not None):
            hint = "Write 'base:%s' for the outer layer." % ref
        raise LayerError("%s: there is no layer %r. %s" % (where, ref, hint))

    def _name_outside(self, name: str, where: str) -> str:
        """Return the name of a layer of this network in the network around."""
        assert self.parent is not None
        if self._local_name(name) is None:
            raise LayerError(
                "%s: there is no layer %r in this network, so 'prev:%s' is undefined. %s"
                % (where, name, name, did_you_mean(name, self.specs))
            )
        return "%s/%s" % (self.path[len(self.parent.path) :].lstrip("/"), name)

    def resolve_if_right(self, ref: str, where: str) -> Optional[Node]:
        """Return the node of a name that nothing needs in this mode, or None if there is a mistake in the layer."""
        levels: list[NetworkLevel] = [self]
        while levels[-1].parent is not None:
            levels.append(levels[-1].parent)
        before = [dict(level._marks) for level in levels]
        try:
            return self.resolve(ref, where)
        except ConfigError:
            for level, marks in zip(levels, before):
                for name in [name for name, mark in level._marks.items() if mark == OPEN and name not in marks]:
                    del level._marks[name]
            return None

    def knows(self, ref: str) -> bool:
        """Return whether the reference names a layer of this network."""
        return self._local_name(ref) is not None

    def _sub_node(self, node: Node, name: str, where: str) -> Node:
        raise NotImplementedError

    def find(self, ref: str, where: str) -> Optional[Node]:
        """Implement `Scope.find`."""
        return None if self._local_name(ref) is None else self.resolve(ref, where)

    def _input_keys(self) -> list[str]:
        return sorted(set(self.inputs or ()) | set(self.state.extern_data))

    def _input(self, key: str, where: str) -> Node:
        if self.inputs is not None and key in self.inputs:
            return self.inputs[key]
        if self.inputs is not None and key == "data":
            raise LayerError("%s: the nested network has no input 'data', since the layer has no sources." % where)
        level = self.parent
        while level is not None and key not in self.state.extern_data:
            if key in level._registered:
                return level.node(level._registered[key])
            level = level.parent
        if key not in self.state.extern_data:
            raise LayerError(
                "%s: there is no data key %r in extern_data. %s"
                % (where, key, self.state.key_hint(key, self._input_keys()))
            )
        return self.extern_node(key)

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Implement `Scope.owner_of_params`."""
        if ref.startswith("base:") and self.parent is not None:
            return self.parent.owner_of_params(ref[len("base:") :], where)
        local = self._local_name(ref)
        if local is None or local == ref:
            return self.resolve(ref, where)
        inside = self.state.inner_owners.get(self.node(local))
        return self.resolve(ref, where) if inside is None else inside(ref[len(local) + 1 :], where)

    def target_node(self, owner: Node, target: str) -> Node:
        """Return the layer of this name, else the data key."""
        where = describe_place(owner.path, owner.layer.class_name)
        level: Optional[NetworkLevel] = self
        if target.startswith(("layer:", "base:", "data:")):
            return self.resolve(target, where)
        while level is not None:
            if level.knows(target):
                return level.resolve(target, where)
            level = level.parent
        if target not in self.state.extern_data:
            known = list(self.specs) + list(self.state.extern_data)
            raise LayerError(
                "%s: the target %r is neither a layer nor a data key. %s"
                % (where, target, self.state.key_hint(target, known)),
                topic="targets",
            )
        return self.extern_node(target)

    def target_data(self, owner: Node, target: str) -> Data:
        """Return the template of a target without counting a data key as used."""
        level: Optional[NetworkLevel] = self
        while level is not None and not target.startswith(("layer:", "base:", "data:")):
            if level.knows(target):
                break
            level = level.parent
        else:
            key = target.partition(":")[2] if target.startswith("data:") else target
            if key in self.state.extern_data:
                return self.state.extern_data[key]
        return self.target_node(owner, target).output

    def extern_node(self, key: str) -> Node:
        """Implement `Builder.extern_node`."""
        if key == SEQ_TAG:
            self.state.extern_data.setdefault(key, Data((batch_dim,), "string"))
        if key not in self.state.extern_data:
            raise ConfigError(
                "there is no data key %r in extern_data. %s" % (key, self.state.key_hint(key, self.state.extern_data))
            )
        if key not in self.state.extern:
            layer = SourceLayer()
            layer.data_key = key
            node = Node("data" if key == "data" else "data:%s" % key, layer, "", extern_key=key)
            node.output = self.state.extern_data[key]
            self.state.extern[key] = node
            self.state.nodes.append(node)
        return self.state.extern[key]

    def sub_output(self, owner: Node, name: str) -> Node:
        """Implement `Builder.sub_output`."""
        path = "%s/%s" % (owner.path, name)
        for node in self.sink:
            if node.path == path:
                return node
        layer = SubOutputLayer(sub_name=name)
        node = Node(path, layer, owner.scope, sources=[owner], deps=[owner])
        node.output, node.in_search = owner.sub_outputs[name], owner.in_search
        self.sink.append(node)
        return node

    def nested_node(self, owner: Node, name: str) -> Optional[Node]:
        """Implement `Builder.nested_node`."""
        scope = self.state.nested.get(owner)
        return None if scope is None else scope.find(name, "Layer %r" % owner.path)

    def resolve_dim(self, dim: Dim) -> Dim:
        """Implement `Scope.resolve_dim`."""
        return self.state.resolve_dim(dim)
