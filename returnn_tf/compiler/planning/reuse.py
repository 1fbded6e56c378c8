"""Decides what provides the parameters of layers with ``reuse_params``, once all layers are planned."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.layer_options import owner_of
from returnn_tf.compiler.planning.parse import join_scope
from returnn_tf.config.errors import OptionError, did_you_mean, nearest_name
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.custom import trace_custom
from returnn_tf.graph.params.reuse import CustomParam, LayerAsParam, OpenParam, Reuse, ReuseLevel, relative_name
from returnn_tf.logging.log import log
from returnn_tf.tensor import Dim

#: The providers of a parameter.
Provider = Union[ParamSpec, LayerAsParam, CustomParam]


def open_params(nodes: Sequence[Node]) -> Iterator[tuple[Node, str, OpenParam]]:
    """Yield (layer, name in the layer, parameter) for all parameters that are not decided yet."""
    for node in nodes:
        for name, param in node.params.items():
            if isinstance(param, OpenParam):
                yield node, name, param


def with_inner(nodes: Sequence[Node]) -> list[Node]:
    """Return the layers with those inside loops and conditions."""
    return [inner for node in nodes for inner in [*with_inner(node.inner), node]]


def decide_all(nodes: Sequence[Node]) -> None:
    """Replace every `OpenParam` by what provides the parameter, and note which layers each layer needs for it.

    :param nodes: all layers of the network; loops contain theirs
    :raises ConfigError: nothing provides a parameter, or its shape is another one
    """
    resolver = _Resolver(nodes)
    for node, name, _ in list(open_params(resolver.nodes)):
        with located(node.path, str(node.layer.class_name), node):
            resolver.decide(node, name)
    for node in resolver.nodes:
        _check_used(node, resolver.asked.get(node, set()))


class _Resolver:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = with_inner(nodes)
        self._known = set(self.nodes)
        #: The layer of the outermost network that contains each layer.
        self._outermost = {inner: node for node in nodes for inner in [*with_inner(node.inner), node]}
        self._place = {node: index for index, node in enumerate(nodes)}
        self._open: list[tuple[Node, str]] = []
        #: Layer with the option -> names of the parameters that asked for it.
        self.asked: dict[Node, set[str]] = {}

    def decide(self, node: Node, name: str) -> Provider:
        """Return the provider of a parameter of a layer, and store it there."""
        param = node.params[name]
        if not isinstance(param, OpenParam):
            provider: Provider = param
            return provider
        if (node, name) in self._open:
            chain = [*self._open[self._open.index((node, name)) :], (node, name)]
            raise OptionError(
                "reuse_params: no layer creates the parameter, as they take it from each other: %s."
                % " <- ".join("%s of %r" % (relative_name(key), n.path) for n, key in chain)
            )
        self._open.append((node, name))
        try:
            found = self._provider(node, param)
        finally:
            self._open.pop()
        node.params[name] = found
        return found

    def _provider(self, node: Node, param: OpenParam) -> Provider:
        for level in param.levels:
            name = relative_name(param.own.name[len(level.scope) :].lstrip("/"))
            self.asked.setdefault(level.owner, set()).add(name)
            found = self._of_form(node, param.own, level, level.reuse, name)
            if found is not None:
                return found
        spec = param.own
        scope, _, name = spec.name.rpartition("/")
        if scope.rpartition("/")[2] == name:  # the reference opens such a scope twice
            spec.name = "%s/%s_1" % (scope, name)
        node.owned.append(spec)
        return spec

    def _of_form(self, node: Node, own: ParamSpec, level: ReuseLevel, form: Reuse, name: str) -> Optional[Provider]:
        """Return the provider by one form of the option; None: the layer creates the parameter itself."""
        if form.shape is not None:
            sizes = tuple(d.size if isinstance(d, Dim) else d for d in form.shape)
            if sizes != own.shape:
                raise OptionError("reuse_params: %r has the shape %s, but 'shape' is %s." % (name, own.shape, sizes))
        owner = None if form.reuse_layer is None else owner_of(level, form)
        if form.custom is not None:
            return self._of_function(node, own, form.custom, owner, name)
        if form.map is not None and name in form.map:
            return self._of_form(node, own, level, form.map[name], name)
        if form.map is not None and not form.auto_create_missing:
            near = nearest_name(name, form.map)
            hint = "It has: %s." % (", ".join(form.map) or "nothing") if near is None else "Did you mean %r?" % near
            raise OptionError(
                "reuse_params: 'map' lacks the parameter %r. Add it; None creates a new one. %s" % (name, hint)
            )
        names: dict[str, tuple[Node, str]] = {}
        if owner is not None:
            names = self._params_of(owner)
            if name in names:
                return self._of_layer(node, own, owner, *names[name])
        if form.layer_output is not None:
            return _of_output(own, form, form.layer_output, name)
        if form.auto_create_missing:
            return None
        if owner is None:
            raise OptionError(
                "reuse_params: nothing provides the parameter %r. Give reuse_layer, custom, layer_output or "
                "auto_create_missing." % name
            )
        raise OptionError(
            "reuse_params: layer %r has no parameter %r, only %s. To create it, set auto_create_missing."
            % (owner.path, name, sorted(names) or "none")
        )

    def _of_layer(self, node: Node, own: ParamSpec, owner: Node, of: Node, key: str) -> Provider:
        found = self.decide(of, key)
        shape = found.wanted.shape if isinstance(found, CustomParam) else _shape(found)
        if shape != own.shape:
            raise OptionError(
                "reuse_params: parameter %r of layer %r has shape %s, but %s is needed here."
                % (relative_name(key), owner.path, shape, own.shape)
            )
        self._need(node, of)
        if isinstance(found, LayerAsParam):
            self._need_output(node, found)
        return found

    def _of_function(
        self, node: Node, own: ParamSpec, function: Any, owner: Optional[Node], name: str
    ) -> Optional[Provider]:
        names = {} if owner is None else self._params_of(owner)
        param = CustomParam(function, node, owner, name, own)
        result: Union[Provider, None] = trace_custom(
            param, {key: functools.partial(self.decide, *at) for key, at in names.items()}
        )
        if owner is not None:
            self._need(node, owner)
        if result is own:
            return None
        for used in (result, *param.used.values()):
            if isinstance(used, LayerAsParam):
                self._need_output(node, used)
        if isinstance(result, CustomParam):
            node.owned += result.created.values()
        return result

    def _params_of(self, owner: Node) -> dict[str, tuple[Node, str]]:
        """Return the parameters of a layer and of those inside it, by relative name: (layer, name there)."""
        found: dict[str, tuple[Node, str]] = {}
        for node in [n for n in self.nodes if n is owner or n.path.startswith(owner.path + "/")]:
            for key, param in node.params.items():
                name = key if node is owner else _full_name(node, key, param)
                if node is not owner:
                    if not name.startswith(owner.scope + "/"):
                        continue
                    name = name[len(owner.scope) + 1 :]
                found.setdefault(relative_name(name), (node, key))
        if not found and owner not in self._known:
            raise OptionError(
                "reuse_params: layer %r is not computed in this mode, so that its parameters do not exist. "
                "Set is_output_layer there." % owner.path
            )
        return found

    def _need(self, node: Node, owner: Node) -> None:
        """Note that the parameters of a layer must exist, and those of the network that it is part of."""
        user = self._outermost[node]
        around = [n for n in self.nodes if owner.path.startswith(n.path + "/")]
        for used in (self._outermost.get(n, n) for n in [owner, *around]):
            if user is not used and used not in user.param_deps:
                user.param_deps.append(used)

    def _need_output(self, node: Node, param: LayerAsParam) -> None:
        user, used = self._outermost[node], self._outermost.get(param.node, param.node)
        if user is used or used in user.deps:
            return
        if self._place[used] > self._place[user]:
            raise OptionError(
                "reuse_params: the parameter is the output of layer %r, which is computed later. Name it by "
                "layer_output here, too." % param.node.path
            )
        user.depend(used)


def _of_output(own: ParamSpec, form: Reuse, node: Node, name: str) -> LayerAsParam:
    dims = node.output.dims if form.shape is None else form.shape
    if not all(isinstance(d, Dim) for d in dims):
        raise OptionError("reuse_params: with layer_output, 'shape' must consist of dims, got %s." % (form.shape,))
    if tuple(d.size for d in dims) != own.shape or set(dims) != set(node.output.dims):
        raise OptionError(
            "reuse_params: %r needs shape %s, but layer_output has %s.%s"
            % (name, own.shape, node.output, "" if form.shape else " Give its dims in this order as 'shape'.")
        )
    if node.output.dtype != own.dtype:
        raise OptionError("reuse_params: %r is %s, but layer_output has %s." % (name, own.dtype, node.output))
    return LayerAsParam(node, tuple(dims))


def _shape(param: Any) -> tuple[Any, ...]:
    return tuple(d.size for d in param.dims) if isinstance(param, LayerAsParam) else param.shape


def _full_name(node: Node, key: str, param: Any) -> str:
    return str(param.own.name) if isinstance(param, OpenParam) else join_scope(node.scope, key)


def _check_used(node: Node, names: set[str]) -> None:
    """Report an option, or entries of its map, that no parameter asked for.

    :param names: those that asked
    """
    reuse = node.layer.reuse_params
    if not isinstance(reuse, Reuse):
        return
    if not names:
        reason = "the layer has no parameters of its own; set it on the layers inside, if there are any"
        log.warn("Layer %r: reuse_params has no effect: %s." % (node.path, reason))
        return
    for name in [name for name in reuse.map or {} if name not in names]:
        hint = did_you_mean(name, names)
        text = "reuse_params: 'map' has %r, but the layer has no such parameter. %s" % (name, hint)
        if reuse.auto_create_missing:  # what was meant would be created without a word
            with located(node.path, str(node.layer.class_name), node):
                raise OptionError(text)
        log.warn("Layer %r: %s" % (node.path, text))
