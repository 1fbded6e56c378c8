"""The limit of a loop: max_seq_len, a number or an expression of the lengths of layers; or max_seq_len_via, a layer."""

from __future__ import annotations

import ast
import dataclasses
import functools
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.builder import NetworkBuilder
from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.graph.node import Node
from returnn_tf.util.lazy_tf import tf

_LENGTH = "max_len_from"
#: The names that the code may use.
_NAMES = (_LENGTH, "tf", "min", "max")
_FORM = "such as \"max_len_from('base:encoder') * 2\""


@dataclasses.dataclass(frozen=True)
class Limit:
    """The maximum number of steps.

    :param steps: function of the `EmitContext` that returns it, int32 scalar
    :param nodes: the layers that it uses
    """

    steps: Callable[[Any], Any]
    nodes: list[Node]


def plan_limit(owner: Node, parent: NetworkBuilder) -> Optional[Limit]:
    """Plan the options max_seq_len and max_seq_len_via of a loop; None without them.

    :param owner: the `rec` layer
    :param parent: plans the enclosing network
    :raises ConfigError: both are given, or one is wrong
    """
    layer: Any = owner.layer
    where = "Layer %r" % owner.path
    if layer.max_seq_len_via is not None:
        if layer.max_seq_len is not None:
            raise LayerError("%s: max_seq_len and max_seq_len_via exclude each other. Remove one." % where)
        node: Node = layer.max_seq_len_via
        if node.output.rank or not node.output.dtype.startswith("int"):
            raise LayerError(
                "%s: max_seq_len_via must name a layer with a single whole number, but %r is %s."
                % (where, node.path, node.output)
            )
        return Limit(lambda ctx: tf.cast(ctx.value(node), tf.int32), [node])
    if layer.max_seq_len is None:
        return None
    nodes: list[Node] = []

    def resolve(ref: str) -> Node:
        nodes.append(_outer_layer(ref, parent, "%s: max_seq_len" % where))
        return nodes[-1]

    return Limit(plan_max_steps(layer.max_seq_len, resolve, where), nodes)


def _outer_layer(ref: str, parent: NetworkBuilder, where: str) -> Node:
    """Return a layer outside of the loop. Its name may have the prefix "base:", as seen from within the loop."""
    if ref.startswith("base:"):
        found = None if parent.parent is None else parent.parent.find(ref[len("base:") :], where)
        return parent.resolve(ref[len("base:") :], where) if found is None else found
    return parent.resolve(ref, where)


def plan_max_steps(given: Any, resolve: Callable[[str], Node], where: str) -> Callable[[Any], Any]:
    """Return a function of the `EmitContext` that returns the limit, int32 scalar.

    :param given: int, or code with ``max_len_from('layer')``, the largest length of a layer in the batch
    :param resolve: name of a layer -> node
    :param where: the start of an error
    """
    start = "%s: max_seq_len" % where
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ConfigError("%s must be at least 1, got %d." % (start, given))
        return lambda ctx: tf.constant(given)
    if not isinstance(given, str):
        raise ConfigError(
            "%s must be a whole number or code such as \"max_len_from('base:encoder')\", got %r." % (start, given)
        )
    try:
        tree = ast.parse(given.strip(), mode="eval")
    except SyntaxError as exc:
        raise ConfigError("%s %r does not parse: %s" % (start, given, exc.msg)) from None
    start += " %r" % given
    nodes = {name: _sequence(resolve(name), name, start) for name in _lengths_of(tree, start)}
    if not nodes:
        _check_constant(tree, start)
    code = compile(tree, "<max_seq_len>", "eval")

    def limit(ctx: Any) -> Any:
        def max_len_from(name: str) -> Any:
            return tf.maximum(tf.reduce_max(ctx.lens(nodes[name].output.time_dim)), 0)  # of no sequences

        names = {_LENGTH: max_len_from, "tf": tf, "min": _of_all(tf.minimum), "max": _of_all(tf.maximum)}
        return tf.maximum(tf.cast(eval(code, names), tf.int32), 0)  # the user's own code, of short sequences too

    return limit


def _of_all(func: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *values: functools.reduce(func, values)


def _lengths_of(tree: ast.Expression, start: str) -> list[str]:
    """Return the layers in all ``max_len_from(...)``; raise an error for any other name."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in _NAMES:
            raise ConfigError(
                "%s: unknown name %r. Write numbers, %s. %s" % (start, node.id, _FORM, did_you_mean(node.id, _NAMES))
            )
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == _LENGTH:
            values = [getattr(arg, "value", None) for arg in [*node.args, *(k.value for k in node.keywords)]]
            if len(values) != 1 or not isinstance(values[0], str):
                raise ConfigError("%s: max_len_from takes the name of one layer in quotes, %s." % (start, _FORM))
            names.append(values[0])
    return names


def _sequence(node: Node, name: str, start: str) -> Node:
    if node.output.time_dim is None:
        raise ConfigError(
            "%s: the layer %r has no time axis, it is %s. Name a layer with the sequences whose length counts, %s."
            % (start, name, node.output, _FORM)
        )
    return node


def _check_constant(tree: ast.Expression, start: str) -> None:
    """Check the value now if no layer occurs in it."""
    if any(isinstance(node, ast.Name) for node in ast.walk(tree)):
        return  # an expression of TensorFlow may have any value
    try:
        value = eval(compile(tree, "<max_seq_len>", "eval"), {"__builtins__": {}})  # numbers and operators only
    except Exception as exc:
        raise ConfigError("%s: %s: %s" % (start, type(exc).__name__, exc)) from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError("%s is %r, but it must be a whole number of at least 1, or code %s." % (start, value, _FORM))
