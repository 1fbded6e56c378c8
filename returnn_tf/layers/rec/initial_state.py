"""The state of a recurrent layer before the first frame: the option ``initial_state``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import OptionError, did_you_mean
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer import Node
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.state import depend_on_state, state_values
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf

#: Values of ``initial_state`` which name no layer.
INITIAL_KEYWORDS = ("zeros", "ones", "var", "keep_over_epoch", "keep_over_epoch_no_init", "placeholder")
#: Those that mean the last state of the batch before -> whether it is zero at the start of a pass over a dataset.
KEPT = {"keep_over_epoch": True, "keep_over_epoch_no_init": False}

_CONSTANTS = {"zeros": 0.0, "ones": 1.0}


@dataclasses.dataclass(frozen=True)
class InitialState:
    """The source of one tensor of an initial state: exactly one of a constant, a parameter, a layer and the last batch.

    :param param: name as in `PlanContext.param`
    :param kept: key as in `PlanContext.keep`
    :param state_index: the tensor of the hidden state of ``node``; None: its output
    """

    constant: Optional[float] = None
    param: Optional[str] = None
    kept: Optional[str] = None
    node: Optional[Node] = None
    state_index: Optional[int] = None


def plan_initial_state(ctx: PlanContext, given: Any, state: HiddenState, param_prefix: str) -> list[InitialState]:
    """Plan the sources of an initial state, one for each tensor; "var" declares parameters.

    :param given: the option ``initial_state``, with layers as nodes
    :param param_prefix: of the names of parameters
    :raises ConfigError: an unknown value, missing keys, a layer whose dims do not fit
    """
    return _Planner(ctx, "initial_state", state, param_prefix).all(given)


def plan_given_state(ctx: PlanContext, given: Any, state: HiddenState) -> list[InitialState]:
    """Plan the sources of the state before a step that the option ``state`` gives: layers.

    :raises ConfigError: anything but layers, missing keys, a layer whose dims do not fit
    """
    values = list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
    if not values or not all(isinstance(value, Node) for value in values):
        raise OptionError(
            "state must name a layer with the state before the step, or be a dict of these%s, not %r."
            % (" with the keys " + " and ".join(state.keys) if state.keys else "", given)
        )
    return _Planner(ctx, "state", state, "").all(given)


class _Planner:
    """Plans the sources of the tensors of a state.

    :param option: the name of the option
    :param prefix: of the names of parameters
    """

    def __init__(self, ctx: PlanContext, option: str, state: HiddenState, prefix: str) -> None:
        self._ctx, self._option, self._state, self._prefix = ctx, option, state, prefix

    def all(self, given: Any) -> list[InitialState]:
        """Plan all tensors."""
        option, keys = self._option, self._state.keys
        if isinstance(given, Node):
            return self._from_layer(given)
        if isinstance(given, (list, tuple)):
            if len(given) != len(keys):
                raise OptionError(
                    "%s is a list of %d entries, but the state of this unit is %s. Write a dict with its keys."
                    % (option, len(given), " and ".join(keys) or "one tensor without a name")
                )
            given = dict(zip(keys, given))
        if not isinstance(given, Mapping):
            return [self._part(given, name, None, index) for index, name in enumerate(keys or ("var",))]
        if not keys:
            raise OptionError(
                "%s is a dict with the keys %s, but this unit has a single state without a name. "
                "Write %s: <the value> instead." % (option, sorted(given), option)
            )
        for key in given:
            if key not in keys:
                raise OptionError("%s has the unknown key %r. %s" % (option, key, did_you_mean(key, keys)))
        for key in keys:
            if key not in given:
                raise OptionError("%s has no key %r. Add it, e.g. %r: 'zeros'." % (option, key, key))
        return [self._part(given[key], key, key, index) for index, key in enumerate(keys)]

    def _from_layer(self, node: Node) -> list[InitialState]:
        """Plan all tensors from one layer."""
        ctx, option, state = self._ctx, self._option, self._state
        other = hidden_state_of(node)
        if other is not None:
            depend_on_state(ctx, node)
            if other.keys != state.keys:
                raise OptionError(
                    "%s: the state of layer %r is %s, but that of this unit is %s. Take the state of a layer with the "
                    "same unit, or give one tensor after the other, as a dict." % (option, node.path, other, state)
                )
            if other.sizes != state.sizes:
                raise OptionError(
                    "%s: the state of layer %r is %s, but that of this unit is %s. The n_out and unit_opts of both "
                    "layers must be the same." % (option, node.path, other, state)
                )
            if other.unit != state.unit:
                raise OptionError(
                    "%s: the state of layer %r is %s, but that of this unit is %s. Take the state of a layer with the "
                    "same unit." % (option, node.path, _kind(other), _kind(state))
                )
            for part, into in zip(other.parts, state.parts):
                self._check_fits(part, into, "%s: the state of layer %r" % (option, node.path))
            return [InitialState(node=node, state_index=index) for index in range(state.count)]
        if state.keys:
            raise OptionError(
                "%s: layer %r has no hidden state, and its output cannot serve as both of %s. Give a layer for "
                "each, as %s: {%s}."
                % (
                    option,
                    node.path,
                    " and ".join(state.keys),
                    option,
                    ", ".join("%r: 'some layer'" % key for key in state.keys),
                )
            )
        return [self._part(node, "", None, 0)]

    def _part(self, given: Any, name: str, key: Optional[str], index: int) -> InitialState:
        """Plan one tensor.

        :param name: of the tensor in the names of variables
        :param key: its key in the dict, or None if the option is no dict
        :param index: its place in the state
        """
        ctx, data = self._ctx, self._state.parts[index]
        what = self._option if key is None else "%s[%r]" % (self._option, key)
        if given is None:
            return InitialState(constant=0.0)
        if isinstance(given, Node):
            return self._part_of_layer(given, what, key, index)
        if given == "var":
            param = "%sinitial_%s" % (self._prefix, name)
            ctx.param(param, (data.feature_dim,), 0.0)
            return InitialState(param=param)
        if isinstance(given, str) and given in _CONSTANTS:
            return InitialState(constant=_CONSTANTS[given])
        if not isinstance(given, (str, bool)) and given in (0, 1):
            return InitialState(constant=float(given))
        if given == "placeholder":
            placeholder = "%sinitial_state_placeholder_%s" % (self._prefix, name)
            ctx.keep(str(index), placeholder, data, resets=False, is_param=False, fed=True)
            return InitialState(kept=str(index))
        if isinstance(given, str) and given in KEPT:
            variable = "%skeep_state_%s" % (self._prefix, name)
            ctx.keep(str(index), variable, data, resets=KEPT[given])
            return InitialState(kept=str(index))
        raise OptionError(
            "%s must be 'zeros', 'ones', 'var', 'keep_over_epoch', 'keep_over_epoch_no_init', 'placeholder', 0, 1, a "
            "layer or a dict, not %r." % (what, given)
        )

    def _part_of_layer(self, node: Node, what: str, key: Optional[str], index: int) -> InitialState:
        other, into = hidden_state_of(node), self._state.parts[index]
        if other is None or node.output.time_axis is None:
            self._check_fits(node.output, into, "%s: layer %r" % (what, node.path))
            return InitialState(node=node)
        # A recurrent layer over frames: not its frames but its state can be meant.
        depend_on_state(self._ctx, node)
        if key is not None and key not in other.keys:
            raise OptionError("%s: the state of layer %r has no %r, it is %s." % (what, node.path, key, other))
        picked = 0 if key is None else other.keys.index(key)
        self._check_fits(other.parts[picked], into, "%s: the state of layer %r" % (what, node.path))
        return InitialState(node=node, state_index=picked)

    def _check_fits(self, data: Data, into: Data, what: str) -> None:
        if data.unknown:
            return  # the value of a previous step, while the loop is planned
        lost = [dim for dim, target in zip(data.dims, match_axes(data, into)) if target is None and dim.size != 1]
        has_feature = data.feature_dim is not None and data.dim == into.dim
        if lost or not has_feature:
            raise OptionError("%s is %s, but %s is needed." % (what, data, into))


def _kind(state: HiddenState) -> str:
    return "an output" if state.unit is None else "a memory of unit %r" % state.unit


def emit_initial_state(
    ctx: EmitContext, parts: Sequence[InitialState], state: HiddenState
) -> Optional[tuple[Any, ...]]:
    """Return the tensors in the layout of the state; None if all are zero."""
    if all(part.constant == 0.0 for part in parts):
        return None
    return tuple(
        tf.broadcast_to(_emit_part(ctx, part, data), ctx.shape(data)) for part, data in zip(parts, state.parts)
    )


def _emit_part(ctx: EmitContext, part: InitialState, data: Data) -> Any:
    if part.param is not None:
        return ctx.param(part.param)
    if part.kept is not None:
        return ctx.kept(part.kept)
    if part.node is None:
        return tf.constant(part.constant, data.dtype)
    if part.state_index is None:
        return ctx.broadcast(part.node, data)
    state = hidden_state_of(part.node)
    values = state_values(ctx, part.node)
    if state is None or values is None:
        raise OptionError("layer %r has no hidden state" % part.node.path)
    return to_layout(values[part.state_index], state.parts[part.state_index], data)
