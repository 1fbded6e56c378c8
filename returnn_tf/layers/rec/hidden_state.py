"""`get_last_hidden_state`: the state of a recurrent layer as a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from returnn_tf.config.errors import OptionError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import HiddenState, LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import LAYERS, register_layer
from returnn_tf.layers.rec.state import depend_on_state, state_values
from returnn_tf.layers.shared.nested import is_network, network_options
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class GetLastHiddenStatePlan(LayerPlan):
    """The plan of `GetLastHiddenStateLayer`.

    :param picked: the hidden state of each source, and the indices of the selected tensors
    """

    picked: Sequence[tuple[HiddenState, list[int]]]


@register_layer("get_last_hidden_state")
class GetLastHiddenStateLayer(Planned[GetLastHiddenStatePlan]):
    """The state of a recurrent layer after the frame processed last (with direction -1 the first one of the sequence).

    ``key`` selects one tensor of the state, for an LSTM "h" or "c"; "*" concatenates all of them in the feature axis,
    for an LSTM c and then h. Several sources are concatenated too. No parameters. In a loop it is the state after the
    step, of ``prev:cell`` the state before it. From outside, the source may be a loop, or ``<loop>/<layer>`` (which
    needs ``is_output_layer``): then it is the state of its layer "output", or of that layer, after the last step of
    each sequence.

    Lengths: the time axis is removed. The state of an empty sequence is the initial one.

    Example::

        network = {
            "enc": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"},
            "output": {"class": "get_last_hidden_state", "from": "enc", "n_out": 3, "key": "h"}}
    """

    takes_hidden_state = True
    combine: str = option("concat", help="how to combine the states of several sources: 'concat' in the feature axis")
    key: Union[str, int] = option("*", help="tensor of the state, e.g. 'h'; '*': all, concatenated")

    def template(self, ctx: PlanContext) -> GetLastHiddenStatePlan:
        """Return the template of the source without the time axis."""
        if self.combine != "concat":
            raise OptionError("combine must be 'concat', not %r." % (self.combine,))
        if not self.sources:
            raise OptionError("needs a source: the recurrent layer, e.g. 'from': 'encoder'.")
        picked = [self._pick(ctx, node) for node in self.sources]
        data = _first(picked)
        size = sum(state.sizes[index] for state, picks in picked for index in picks)
        for node, (state, _) in zip(self.sources, picked):
            self._check_axes(ctx, node, state.parts[0], data)
        if self.n_out is not None and self.n_out != size:
            raise OptionError("n_out is %d, but the state %r has dim %d. Omit n_out." % (self.n_out, self.key, size))
        assert data.feature_axis is not None
        out = data.dims[data.feature_axis] if size == data.dim else ctx.new_feature(size)
        return GetLastHiddenStatePlan(data.with_feature(data.feature_axis, ctx.bind(self.out_dim, out)), picked)

    def _pick(self, ctx: PlanContext, node: Node) -> tuple[HiddenState, list[int]]:
        """Return (the hidden state of a source, indices of the tensors that ``key`` selects)."""
        state = hidden_state_of(node)
        if state is None:
            raise OptionError(
                "source %r (class %r) has no hidden state. Take it from a recurrent layer, e.g. of class 'rec'."
                % (node.path, node.layer.class_name)
            )
        depend_on_state(ctx, node)
        if self.key is None or self.key == "*":
            return state, list(range(state.count))
        if not state.keys:
            raise OptionError(
                "the unit of source %r has a single state without a name, so there is no key %r. Omit key."
                % (node.path, self.key)
            )
        if self.key not in state.keys:
            hint = did_you_mean(self.key, [*state.keys, "*"])
            raise OptionError("the state of source %r has no key %r. %s" % (node.path, self.key, hint))
        return state, [state.keys.index(self.key)]

    def _check_axes(self, ctx: PlanContext, node: Node, data: Data, common: Data) -> None:
        mapped = match_axes(
            data.without_axes([data.feature_axis or 0]), common.without_axes([common.feature_axis or 0])
        )
        if data.rank != common.rank or None in mapped:
            raise OptionError(
                "the state of source %r is %s, but that of %r is %s: only their feature dims may differ."
                % (node.path, data, self.source.path, common)
            )

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op for a single tensor."""
        common = _first(self.plan.picked)
        tensors: list[Any] = []
        for node, (state, picks) in zip(self.sources, self.plan.picked):
            values = state_values(ctx, node)
            tensors += [_in_layout(values[index], state.parts[index], common) for index in picks]
        return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=common.feature_axis)


def _first(picked: Sequence[tuple[HiddenState, list[int]]]) -> Data:
    """Return the template of the first tensor, whose layout the output has."""
    state, picks = picked[0]
    return state.parts[picks[0]]


def asks_for_state(cls: Optional[type[Any]], options: Mapping[str, Any]) -> bool:
    """Return whether a layer of this class is in the subnetwork or the unit of a layer.

    :param cls: class of the layer
    :param options: of the layer, as in the config
    """
    for key in network_options(cls):
        nested = options.get(key)
        if isinstance(nested, Mapping) and not (key == "unit" and is_network(nested)):  # an inner loop
            layers = list(nested.values()) if is_network(nested) else [nested]
            for layer in layers:
                inner = LAYERS.find(layer.get("class")) if isinstance(layer, Mapping) else None
                if inner is not None and (inner.takes_hidden_state or asks_for_state(inner, layer)):
                    return True
    return False


def _in_layout(value: Any, data: Data, common: Data) -> Any:
    """Return the axes of ``value`` in the order of ``common``, whatever the size of the feature axis.

    :param data: template of ``value``
    """
    if data is common:
        return value
    into = common.with_dim(common.feature_axis or 0, data.dims[data.feature_axis or 0])
    mapping: list[Optional[int]] = match_axes(data, into)
    return to_layout(value, data, into, mapping)
