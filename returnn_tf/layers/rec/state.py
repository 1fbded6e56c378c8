"""The hidden state of recurrent layers: its layout, access by other layers, and the initial state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.layers.shared.last_frame import last_frame
from returnn_tf.ops.frames.shape import expand_at, to_layout
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf

#: Values of ``initial_state`` which name no layer.
INITIAL_KEYWORDS = ("zeros", "ones", "var", "keep_over_epoch", "keep_over_epoch_no_init")

_CONSTANTS = {"zeros": 0.0, "ones": 1.0}


@dataclasses.dataclass(frozen=True)
class HiddenState:
    """The state of a recurrent layer after the last frame.

    :param keys: names of the tensors; () means one tensor without a name
    :param data: template of each of them
    """

    keys: tuple[str, ...]
    data: Data

    @property
    def count(self) -> int:
        """Return the number of tensors."""
        return len(self.keys) or 1


def recurrent_node(node: Node) -> Node:
    """Return the layer whose hidden state a layer forwards: that of its source or of its inner layer, else its own."""
    while True:
        layer: Any = node.layer
        inner = node.sources[0] if isinstance(layer, CopyLayer) and len(node.sources) == 1 else layer
        inner = getattr(layer, "inner", None) if inner is layer else inner
        if not isinstance(inner, Node):
            return node
        node = inner


def hidden_state_of(node: Node) -> Optional[HiddenState]:
    """Return the hidden state that a planned layer has or forwards; None if there is none."""
    return getattr(recurrent_node(node).layer, "hidden_state", None)


def _batch_of_state(node: Node) -> Optional[int]:
    state = hidden_state_of(node)
    return None if state is None else state.data.batch_axis


#: The tensors of the hidden state of a layer, in the order of `HiddenState.keys`.
HIDDEN_STATE: Aux[tuple[Any, ...]] = Aux(
    "hidden state",
    batch_axis=_batch_of_state,
    each=lambda func, parts: tuple(func(part) for part in parts),
    forwarded=True,
)


def carried_state_of(node: Node) -> Optional[HiddenState]:
    """Return the hidden state that a layer of a step carries to the next one, or None."""
    return hidden_state_of(node) if recurrent_node(node).loop_states else None


def depend_on_state(ctx: PlanContext, node: Node) -> None:
    """Declare that `emit` will use the hidden state of a layer; one of an enclosing loop must be planned first."""
    plan_state = getattr(recurrent_node(node).layer, "plan_state", None)
    if plan_state is not None:
        ctx.depend(plan_state())


def state_values(ctx: EmitContext, node: Node) -> Any:
    """Return the tensors of the hidden state of a layer; in a loop those after this step, for ``prev:`` before it."""
    owner = recurrent_node(node)
    lowering = ctx.lowering
    exit_layer: Any = owner.layer
    if getattr(exit_layer, "plan_state", None) is not None:
        last = exit_layer.plan_state()
        if isinstance(last.layer, LastStateLayer):
            return tf.split(ctx.value(last), exit_layer.hidden_state.count, axis=last.output.feature_axis)
        return state_values(ctx, last)
    before = getattr(owner.layer, "state_of", None)
    if before is not None:
        return tuple(lowering.loop_inputs[before, key] for key in before.loop_states)
    if owner.loop_states and all((owner, key) in lowering.next_states for key in owner.loop_states):
        return tuple(lowering.next_states[owner, key] for key in owner.loop_states)
    values = ctx.aux(node, HIDDEN_STATE)
    return ctx.aux(owner, HIDDEN_STATE) if values is None else values


class LastStateLayer(Layer):
    """The hidden state of a cell of a loop after the last step of each sequence, taken from its states of all steps.

    :param cell: the layer in the step of the loop
    """

    class_name = "last state"
    is_connector = True

    def __init__(self, cell: Node) -> None:
        super().__init__()
        self._cell = cell

    def template(self, ctx: Any) -> Data:
        """Infer the output without the steps."""
        data = self.source.output
        assert data.time_axis is not None
        return data.without_axes([data.time_axis])

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the state; for a sequence without steps, the one before the first step."""
        data = self.source.output
        dim = data.time_dim
        assert dim is not None
        lens = ctx.lens(dim)
        last = last_frame(ctx, self.source)
        owner = recurrent_node(self._cell)
        inner = type(ctx)(owner, ctx.lowering)
        initial = [to_layout(start(inner), part, self._part()) for part, start in owner.loop_states.values()]
        first = tf.concat(initial, axis=ctx.output.feature_axis)
        if ctx.beam > 1:
            first = tf.repeat(first, ctx.beam, axis=ctx.output.batch_axis)
        if lens.shape.rank:
            lens = expand_at(lens, [i for i in range(ctx.output.rank) if i != ctx.output.batch_axis])
        return tf.where(lens > 0, last, first)

    def _part(self) -> Data:
        """Return the layout of one of the concatenated tensors."""
        state = hidden_state_of(self._cell)
        data = self.node.output
        assert state is not None and data.feature_axis is not None
        return data.with_dim(data.feature_axis, state.data.dims[state.data.feature_axis or 0])


@dataclasses.dataclass(frozen=True)
class InitialState:
    """The source of one tensor of an initial state: exactly one of a constant, a parameter and a layer.

    :param param: name as in `PlanContext.param`
    :param state_index: the tensor of the hidden state of ``node``; None: its output
    """

    constant: Optional[float] = None
    param: Optional[str] = None
    node: Optional[Node] = None
    state_index: Optional[int] = None


def plan_initial_state(ctx: PlanContext, given: Any, state: HiddenState, param_prefix: str) -> list[InitialState]:
    """Plan the sources of an initial state, one for each tensor; "var" declares parameters.

    :param given: the option ``initial_state``, with layers as nodes
    :param param_prefix: of the names of parameters
    :raises ConfigError: an unknown value, missing keys, a layer whose dims do not fit
    """
    if not isinstance(given, Mapping):
        if isinstance(given, Node):
            return _from_layer(ctx, given, state)
        names = ["initial_" + key for key in state.keys] or ["initial_var"]
        return [_plan_part(ctx, given, state, param_prefix + name, None) for name in names]
    if not state.keys:
        raise ctx.error(
            "initial_state is a dict with the keys %s, but this unit has a single state without a name. "
            "Write initial_state: <the value> instead." % sorted(given)
        )
    for key in given:
        if key not in state.keys:
            raise ctx.error("initial_state has the unknown key %r. %s" % (key, did_you_mean(key, state.keys)))
    for key in state.keys:
        if key not in given:
            raise ctx.error("initial_state has no key %r. Add it, e.g. %r: 'zeros'." % (key, key))
    return [_plan_part(ctx, given[key], state, param_prefix + "initial_" + key, key) for key in state.keys]


def _from_layer(ctx: PlanContext, node: Node, state: HiddenState) -> list[InitialState]:
    """Plan all tensors from one layer."""
    other = hidden_state_of(node)
    if other is not None:
        depend_on_state(ctx, node)
        if other.keys != state.keys:
            raise ctx.error(
                "initial_state: layer %r has the state %s, but this unit has %s."
                % (node.path, " and ".join(other.keys) or "of one tensor", " and ".join(state.keys) or "one tensor")
            )
        _check_fits(ctx, other.data, state.data, "initial_state: the state of layer %r" % node.path)
        return [InitialState(node=node, state_index=index) for index in range(state.count)]
    if state.keys:
        raise ctx.error(
            "initial_state: layer %r has no hidden state, and its output cannot serve as both of %s. Give a layer for "
            "each, as initial_state: {%s}."
            % (node.path, " and ".join(state.keys), ", ".join("%r: 'some layer'" % key for key in state.keys))
        )
    return [_plan_part(ctx, node, state, "", None)]


def _plan_part(ctx: PlanContext, given: Any, state: HiddenState, param: str, key: Optional[str]) -> InitialState:
    """Plan one tensor.

    :param param: name of the parameter for "var"
    :param key: its key in the dict, or None if the option is no dict
    """
    what = "initial_state" if key is None else "initial_state[%r]" % key
    if given is None:
        return InitialState(constant=0.0)
    if isinstance(given, Node):
        other = hidden_state_of(given)
        if other is not None and given.output.time_axis is not None:
            # A recurrent layer over frames: not its frames but its state can be meant.
            depend_on_state(ctx, given)
            if key is not None and key not in other.keys:
                raise ctx.error("%s: the state of layer %r has no %r." % (what, given.path, key))
            _check_fits(ctx, other.data, state.data, "%s: the state of layer %r" % (what, given.path))
            return InitialState(node=given, state_index=0 if key is None else other.keys.index(key))
        _check_fits(ctx, given.output, state.data, "%s: layer %r" % (what, given.path))
        return InitialState(node=given)
    if given == "var":
        ctx.param(param, (state.data.feature_dim,), 0.0)
        return InitialState(param=param)
    if isinstance(given, str) and given in _CONSTANTS:
        return InitialState(constant=_CONSTANTS[given])
    if not isinstance(given, (str, bool)) and given in (0, 1):
        return InitialState(constant=float(given))
    if given in INITIAL_KEYWORDS:
        raise ctx.error(
            "%s: %r (state kept from batch to batch) is not supported. Use 'zeros' or 'var'." % (what, given)
        )
    raise ctx.error("%s must be 'zeros', 'ones', 'var', 0, 1, a layer or a dict, not %r." % (what, given))


def _check_fits(ctx: PlanContext, data: Data, into: Data, what: str) -> None:
    lost = [dim for dim, target in zip(data.dims, match_axes(data, into)) if target is None and dim.size != 1]
    has_feature = data.feature_dim is not None and data.dim == into.dim
    if lost or not has_feature:
        raise ctx.error("%s is %s, but %s is needed." % (what, data, into))


def emit_initial_state(ctx: EmitContext, parts: Sequence[InitialState], data: Data) -> Optional[tuple[Any, ...]]:
    """Return the tensors in the layout of ``data``; None if all are zero."""
    if all(part.constant == 0.0 for part in parts):
        return None
    shape = ctx.shape(data)
    return tuple(tf.broadcast_to(_emit_part(ctx, part, data), shape) for part in parts)


def _emit_part(ctx: EmitContext, part: InitialState, data: Data) -> Any:
    if part.param is not None:
        return ctx.param(part.param)
    if part.node is None:
        return tf.constant(part.constant, data.dtype)
    if part.state_index is None:
        return ctx.broadcast(part.node, data)
    state = hidden_state_of(part.node)
    values = state_values(ctx, part.node)
    if state is None or values is None:
        raise ConfigError("layer %r has no hidden state" % part.node.path)
    return to_layout(values[part.state_index], state.data, data)
