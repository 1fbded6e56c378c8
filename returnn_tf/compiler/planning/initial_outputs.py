"""The option ``initial_output``: the value of ``prev:x`` in the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.compiler.planning.zones import Zone
from returnn_tf.config import did_you_mean
from returnn_tf.graph.layer import Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.masked.unit_on_zeros import UnitOnZeros
from returnn_tf.loops.plan import InitialOutput
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes

_CONSTANTS = {"zeros": 0, "ones": 1}
_FORMS = "a number, 'zeros', 'ones', 'var', 'apply(0)' or a layer such as 'base:enc'"


def plan_initial_output(
    planner: NetworkPlanner, scope: Scope, zones: Mapping[str, Zone], spec: LayerSpec, node: Node, prev: Data
) -> InitialOutput:
    """Plan the initial output of a layer; "var" declares a parameter.

    :param planner: plans the zone of the layer
    :param scope: of the step network
    :param zones: the zones of its layers
    :param prev: the template of ``prev:x`` in a step
    :raises LayerError: labels without an initial output, or an unknown form
    """
    given: Any = spec.options.get("initial_output")
    layer = node.layer
    state = layer.initial_output_value if layer.gives_initial_output() else None
    if given is None and state is not None:
        return InitialOutput(state=lambda ctx: state(type(ctx)(node, ctx.lowering)))
    if given is None:
        if node.output.sparse_dim is not None:
            raise LayerError(
                "%s: 'prev:%s' needs the option 'initial_output' of this layer, since there is no natural first label. "
                "Give the label before the first step, e.g. 'initial_output': 0." % (spec.where, spec.name),
                topic="loops",
            )
        return InitialOutput()
    labels = node.output.sparse_dim.size if node.output.sparse_dim is not None else None
    if labels is not None and type(given) is int and not 0 <= given < labels:
        raise LayerError(
            "%s: initial_output is %d, but the labels of this layer are 0 to %d (%s)."
            % (spec.where, given, labels - 1, node.output.sparse_dim),
            topic="loops",
        )
    if isinstance(given, (bool, int, float)):
        return InitialOutput(constant=given)
    if isinstance(given, str):
        if given in _CONSTANTS:
            return InitialOutput(constant=_CONSTANTS[given])
        if given == "var":
            name = "init_%s_var" % spec.name.rpartition("/")[2]
            if name not in node.params:
                ctx = PlanContext(node, planner)
                ctx.param(name, (ctx.need_feature(node.output, "the output"),), 0.0)
            return InitialOutput(param=(node, name))
        if given == "apply(0)":
            if node.layer.chooses_labels:
                raise LayerError(
                    "%s: initial_output: a choice has no 'apply(0)'. Give a label, e.g. 0." % spec.where, topic="loops"
                )
            return _on_zeros(planner, node, state)
        return InitialOutput(node=_layer(planner, scope, zones, spec, prev))
    raise LayerError("%s: initial_output must be %s, not %r." % (spec.where, _FORMS, given), topic="loops")


def _on_zeros(planner: NetworkPlanner, node: Node, state: Any) -> InitialOutput:
    """Return the layer itself on sources of zeros, with the layers inside it, if any."""
    if node.layer.starts_on_zeros:
        return InitialOutput(state=lambda ctx: state(type(ctx)(node, ctx.lowering)))
    inner = [other for other in planner.planned_nodes if other.path.startswith(node.path + "/")]
    unit = UnitOnZeros([*inner, node], node, node.sources if inner else node.deps, None)
    return InitialOutput(state=lambda ctx: unit.emit(ctx, node.output.without_axes(node.output.loop_axes)))


def names_layer(given: Any) -> bool:
    """Return whether a value of the option is the name of a layer."""
    return isinstance(given, str) and given not in _CONSTANTS and given not in ("var", "apply(0)")


def initial_layer(planner: NetworkPlanner, scope: Scope, zones: Mapping[str, Zone], spec: LayerSpec) -> Optional[Node]:
    """Plan the layer that provides the initial output, or return None if the option names none.

    :raises LayerError: there is no such layer, or it has no value before the first step
    """
    name: Any = spec.options.get("initial_output")
    if not names_layer(name):
        return None
    for _ in range(spec.name.count("/")):  # of a layer in a subnetwork: as seen from the loop
        name = name[len("base:") :] if name.startswith("base:") else spec.name
    inside = scope.layer_of(name[len("prev:") :] if name.startswith("prev:") else name)
    if inside is not None and (name.startswith("prev:") or zones.get(inside) is not Zone.BEFORE):
        raise LayerError(
            "%s: initial_output: %r has no value before the first step, as it is computed in the loop. Use %s."
            % (spec.where, name, _FORMS),
            topic="loops",
        )
    try:
        return planner.resolve(name, spec.where)
    except LayerError as exc:
        hint = did_you_mean(name, [*_CONSTANTS, "var", "apply(0)"]) if ":" not in name else ""
        raise LayerError("%s\n  (initial_output must be %s. %s)" % (exc, _FORMS, hint), topic="loops") from None


def with_initial_axes(step: Data, initial: Data, *, guessed: bool) -> Data:
    """Return the template of ``prev:x``: that of the initial output if it has more axes than the value of a step.

    The value of a step is broadcast to it. Axes of size 1 do not count.

    :param step: template of x in a step
    :param initial: template of the initial output
    :param guessed: whether the former does not rest on the axes of ``prev:x`` yet, and may get those in addition
    """
    initial = initial.without_axes(initial.loop_axes)
    if initial.unknown:
        return step
    if step.unknown:
        return initial
    lost = _axes_not_in(initial, step)
    if not lost or not (guessed or initial.rank > step.rank):
        return step
    if _axes_not_in(step, initial) and not guessed:
        return step  # neither has all axes; checked when the loop is complete
    if (
        initial.feature_axis in lost
        and step.feature_axis is not None
        and step.feature_axis in _axes_not_in(step, initial)
    ):
        return step  # other features, not further ones
    return initial.replace(dtype=step.dtype, sparse_dim=step.sparse_dim, vocab=step.vocab, beam=step.beam)


def _axes_not_in(data: Data, other: Data) -> list[int]:
    """Return the axes of a template, other than those of size 1, that another one lacks."""
    return [a for a, axis in enumerate(match_axes(data, other)) if axis is None and data.dims[a].size != 1]


def _layer(
    planner: NetworkPlanner, scope: Scope, zones: Mapping[str, Zone], spec: LayerSpec, output: Data
) -> Optional[Node]:
    """Return the layer that provides the value; its axes must be among those of ``prev:``."""
    node = initial_layer(planner, scope, zones, spec)
    output = output.without_axes(output.loop_axes)
    if node is None or node.output.unknown or output.unknown:
        return node
    lost = _axes_not_in(node.output, output)
    if lost:
        raise LayerError(
            "%s: initial_output: layer %r is %s, but the value of a step is %s, without the axis %s."
            % (spec.where, node.path, node.output, output, node.output.dims[lost[0]]),
            topic="loops",
        )
    return node
