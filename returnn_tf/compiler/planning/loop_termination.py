"""The end of a loop: its layer ``end``, and the limit of its steps.

The limit is max_seq_len, a number or an expression of the lengths of layers; or max_seq_len_via, a layer.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.iterated_axis import IteratedAxis
from returnn_tf.compiler.planning.step_layers import StepLayers, rec_layer
from returnn_tf.compiler.planning.zones import reachable
from returnn_tf.config.errors import LoopError, did_you_mean
from returnn_tf.graph.layer import Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.loops.nodes import LoopLengthLayer
from returnn_tf.loops.plan import Ending
from returnn_tf.util.lazy_tf import tf

_LENGTH = "max_len_from"
#: The names that the code may use.
_NAMES = (_LENGTH, "tf", "min", "max")
_FORM = "such as \"max_len_from('base:encoder') * 2\""


class LoopTermination:
    """When a loop ends.

    The layers that limit it are part of the network even where they have no effect, as in training.

    :param owner: the `rec` layer
    :param parent: plans the enclosing network
    :param layers: of the step network
    :param axis: the axis that the loop runs over
    :param find_outer: returns the layer outside of the loop that a name means; the second argument begins an error
    :raises ConfigError: the options max_seq_len and max_seq_len_via are wrong
    """

    def __init__(
        self,
        owner: Node,
        parent: NetworkPlanner,
        layers: StepLayers,
        axis: IteratedAxis,
        find_outer: Callable[[str, str], Node],
    ) -> None:
        self._owner, self._layers, self._axis = owner, layers, axis
        #: The nodes outside that the number of steps depends on.
        self.length_deps: list[Node] = []
        self._limit = _plan_limit(owner, find_outer)
        if self._limit is None:
            return
        for node in self._limit.nodes:
            self.length_deps.append(node)
            owner.depend(node)
        if not layers.has_end and not axis.known:
            # Then it is the number of steps of all sequences.
            layer = LoopLengthLayer(axis.time_dim, self._limit.steps)
            length = parent.implicit_layer(owner, "length", layer, self._limit.nodes)
            self.length_deps.append(length)
            owner.depend(length)

    def ending(self, end: Optional[Node], inner: Sequence[Node]) -> Ending:
        """Return when the loop ends.

        :param end: the layer "end", if it decides
        :param inner: the layers of the step
        :raises LayerError: "end" has another shape, does not know the hypotheses, or the loop may never end
        """
        include_eos = bool(rec_layer(self._owner).include_eos)
        if end is None:
            return Ending(None, include_eos, None, None)
        if end.output.dtype != "bool" or end.output.rank > (0 if end.output.batch_axis is None else 1):
            raise LayerError(
                "Layer %r: 'end' must be a bool per sequence, it is %s." % (end.path, end.output), topic="loops"
            )
        self._check_end(end, [n for n in inner if n.layer.searches])
        if self._limit is None and self._axis.source_dim is None:
            raise LayerError(
                "Layer %r: a loop that ends by its layer 'end' needs the option max_seq_len, so that it always "
                "terminates. Give a number or e.g. \"max_len_from('base:encoder')\"." % self._owner.path,
                topic="loops",
            )
        return Ending(end, include_eos, None if self._limit is None else self._limit.steps, self._axis.time_dim)

    def _check_end(self, end: Node, choices: Sequence[Node]) -> None:
        """Check that in search the end distinguishes hypotheses."""
        if not choices:
            return
        names = {name for name, spec in self._layers.specs.items() if spec.cls.chooses_labels}
        found = reachable(["end"], lambda name: [*self._layers.links[name].now, *self._layers.links[name].prev])
        if not found & names:
            raise LayerError(
                "Layer %r: 'end' does not depend on the choice %r, so it can't tell which hypothesis ends. Make it "
                "depend on the label, e.g. 'end': {'class': 'compare', 'from': %r, 'value': 0}, or, if the number of "
                "steps is known, give the loop a source or the option 'axis' instead of 'end'."
                % (end.path, choices[-1].path, choices[-1].path.rpartition("/")[2]),
                topic="loops",
            )


@dataclasses.dataclass(frozen=True)
class _Limit:
    """The maximum number of steps.

    :param steps: function of the `EmitContext` that returns it, int32 scalar
    :param nodes: the layers that it uses
    """

    steps: Callable[[Any], Any]
    nodes: list[Node]


def _plan_limit(owner: Node, find_outer: Callable[[str, str], Node]) -> Optional[_Limit]:
    """Plan the options max_seq_len and max_seq_len_via of a loop; None without them.

    :param owner: the `rec` layer
    :param find_outer: returns the layer outside of the loop that a name means; the second argument begins an error
    :raises ConfigError: both are given, or one is wrong
    """
    layer = rec_layer(owner)
    where = "Layer %r" % owner.path
    if layer.max_seq_len_via is not None:
        if layer.max_seq_len is not None:
            raise LayerError(
                "%s: max_seq_len and max_seq_len_via exclude each other. Remove one." % where, topic="loops"
            )
        node: Node = layer.max_seq_len_via
        if node.output.rank or not node.output.dtype.startswith("int"):
            raise LayerError(
                "%s: max_seq_len_via must name a layer with a single whole number, but %r is %s."
                % (where, node.path, node.output),
                topic="loops",
            )
        return _Limit(lambda ctx: tf.cast(ctx.value(node), tf.int32), [node])
    if layer.max_seq_len is None:
        return None
    nodes: list[Node] = []

    def resolve(ref: str) -> Node:
        nodes.append(find_outer(ref, "%s: max_seq_len" % where))
        return nodes[-1]

    return _Limit(plan_max_steps(layer.max_seq_len, resolve, where), nodes)


def plan_max_steps(given: Any, resolve: Callable[[str], Node], where: str) -> Callable[[Any], Any]:
    """Return a function of the `EmitContext` that returns the limit, int32 scalar.

    :param given: int, or code with ``max_len_from('layer')``, the largest length of a layer in the batch
    :param resolve: name of a layer -> node
    :param where: the start of an error
    """
    start = "%s: max_seq_len" % where
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise LoopError("%s must be at least 1, got %d." % (start, given))
        return lambda ctx: tf.constant(given)
    if not isinstance(given, str):
        raise LoopError(
            "%s must be a whole number or code such as \"max_len_from('base:encoder')\", got %r." % (start, given)
        )
    try:
        tree = ast.parse(given.strip(), mode="eval")
    except SyntaxError as exc:
        raise LoopError("%s %r does not parse: %s" % (start, given, exc.msg)) from None
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
            raise LoopError(
                "%s: unknown name %r. Write numbers, %s. %s" % (start, node.id, _FORM, did_you_mean(node.id, _NAMES))
            )
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == _LENGTH:
            values = [getattr(arg, "value", None) for arg in [*node.args, *(k.value for k in node.keywords)]]
            if len(values) != 1 or not isinstance(values[0], str):
                raise LoopError("%s: max_len_from takes the name of one layer in quotes, %s." % (start, _FORM))
            names.append(values[0])
    return names


def _sequence(node: Node, name: str, start: str) -> Node:
    if node.output.time_dim is None:
        raise LoopError(
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
        raise LoopError("%s: %s: %s" % (start, type(exc).__name__, exc)) from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LoopError("%s is %r, but it must be a whole number of at least 1, or code %s." % (start, value, _FORM))
