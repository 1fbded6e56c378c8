"""Checks of a planned layer, and errors that name it. No TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from returnn_tf.compiler.planning.parse import describe_place, is_extra
from returnn_tf.config.errors import ConfigError, SparseError
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.tensor import Data


class LayerError(ConfigError):
    """A `ConfigError` that already names its layer."""


@contextlib.contextmanager
def located(path: str, class_name: str, node: Node) -> Iterator[None]:
    """Prepend layer path, class and sources to a `ConfigError` that does not name its layer yet."""
    try:
        yield
    except LayerError:
        raise
    except ConfigError as exc:
        message = str(exc)
        if not message.startswith("Layer "):
            message = "%s: %s" % (describe_place(path, class_name), message)
        if node.sources and all(s.planned for s in node.sources):
            shapes = [(s.path, "of unknown shape" if s.output.unknown else s.output) for s in node.sources]
            message += "\n  sources: " + "; ".join("%s %s" % each for each in shapes)
            steps = [str(dim) for s in node.sources for dim in s.output.dims if dim.is_loop]
            if steps:
                message += "\n  (The axis %s is the step axis: a layer of a loop sees one step at a time.)" % steps[0]
        raise LayerError(message, topic=exc.topic) from exc


def check_source_dtypes(node: Node) -> None:
    """Check that complex numbers and integers go to layers that compute with them.

    :raises ConfigError: the layer needs real numbers, or has parameters, which are real
    """
    layer, has_params = node.layer, any(_is_float(spec) for spec in node.params.values())
    takes_ints = not has_params if layer.takes_ints is None else layer.takes_ints
    for source in node.sources:
        data = source.output
        if data.dtype.startswith("complex") and (has_params or not layer.takes_complex):
            raise SparseError(
                "needs real numbers, but %r is %s. Take a part of them before, e.g. by {'class': 'activation', "
                "'activation': 'abs'}." % (source.path, data)
            )
        if data.dtype.startswith(("int", "uint", "bool", "string")) and not (data.sparse or data.unknown or takes_ints):
            raise SparseError(
                "needs floats, but %r is %s. Cast it by a layer of class 'cast'; declare labels as sparse."
                % (source.path, data)
            )


def _is_float(spec: Any) -> bool:
    return not isinstance(spec, ParamSpec) or spec.dtype.startswith(("float", "bfloat"))


def check_param_names(nodes: list[Node]) -> None:
    """Check that parameter names are unique, except where a ``name_scope`` makes layers share one of the same shape."""
    nodes = [inner for node in nodes for inner in [*node.inner, node]]
    by_path = {node.path: node for node in nodes}
    owners: dict[str, tuple[Node, ParamSpec]] = {}
    for node in nodes:
        for spec in list(node.owned):
            other, first = owners.setdefault(spec.name, (node, spec))
            if other is node:
                continue
            if is_extra(node.path) or is_extra(other.path):
                continue  # shared later, see `share_extra_params`
            same = (first.shape, first.dtype) == (spec.shape, spec.dtype)
            shapes = "" if same else ", with the shapes %s and %s" % (first.shape, spec.shape)
            if not same or not any(_has_name_scope(by_path, n) for n in (node, other)):
                raise LayerError(
                    "Layers %r and %r both have a parameter named %r%s. Rename one of the layers, change its "
                    "name_scope, or share the parameter by reuse_params." % (other.path, node.path, spec.name, shapes),
                    topic="sparse-data",
                )
            node.owned.remove(spec)
            node.params.update({name: first for name, value in node.params.items() if value is spec})


def share_extra_params(nodes: list[Node]) -> None:
    """Let the layers of extra networks use the parameters of the main network with the same names.

    :param nodes: all layers, those in loops included
    :raises LayerError: they differ in shape or type
    """
    owners: dict[str, tuple[Node, ParamSpec]] = {}
    for node in sorted(nodes, key=lambda node: is_extra(node.path)):  # those of the main network first
        for spec in list(node.owned):
            owner, first = owners.setdefault(spec.name, (node, spec))
            if first is spec:
                continue
            if (first.shape, first.dtype) != (spec.shape, spec.dtype):
                raise LayerError(
                    "Layers %r and %r share the parameter %r, but with the shapes %s and %s. Rename one of them."
                    % (owner.path, node.path, spec.name, first.shape, spec.shape),
                    topic="sparse-data",
                )
            node.owned.remove(spec)
            node.params.update({name: first for name, value in node.params.items() if value is spec})


def _has_name_scope(by_path: dict[str, Node], node: Node) -> bool:
    """Return whether the layer or an enclosing one sets the scope of its parameters."""
    parts = node.path.split("/")
    around = (by_path.get("/".join(parts[:i])) for i in range(1, len(parts) + 1))
    return any(n is not None and n.layer.name_scope is not None for n in around)


def with_beam(node: Node) -> Data:
    """Return the template with the search hypotheses of a source."""
    data = node.output
    beams = {dep.output.beam for dep in node.deps if dep.planned and dep.output.beam is not None}
    if data.beam is not None or data.batch_axis is None or not beams:
        return data
    if len(beams) > 1:
        raise SparseError(
            "the sources hold hypotheses of different searches (%s). Put a 'decide' layer after one of them."
            % ", ".join(sorted(beam.of for beam in beams))
        )
    return data.replace(beam=beams.pop())


def cycle_error(path: str, open_names: list[str], again: str, *, in_loop: bool) -> LayerError:
    """Return an error about layers that depend on each other in a cycle.

    :param path: path of the layer that their network is part of, "" at the top
    :param open_names: the layers being planned; each needs the next one
    :param again: the one of them that the last one needs
    :param in_loop: whether layers there can use previous steps
    """
    names = open_names[open_names.index(again) :] if again in open_names else open_names
    prefix = path + "/" if path else ""
    chain = " <- ".join(prefix + n for n in names + [again])
    hint = "Only inside a 'rec' layer can a layer use its own past, as 'prev:%s'." % again
    if in_loop:
        hint = "One of them must use the previous step: prefix 'prev:', e.g. 'prev:%s'." % again
    return LayerError("The layers depend on each other in a cycle: %s. %s" % (chain, hint), topic="sources")
