"""``self`` in user code, and the layers that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.network_view import NetworkView
from returnn_tf.config.errors import CodeError, did_you_mean
from returnn_tf.config.option_values import map_values
from returnn_tf.config.options import declared_options
from returnn_tf.graph.aux_values import OUTPUT_LOSS, PRE_ACTIVATION
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HIDDEN_STATE, hidden_state_of, recurrent_node
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.ops.activations import get_activation
from returnn_tf.util.lazy_tf import tf


class PlannedLayerView:
    """A layer while the network is planned: its name and templates.

    :param node: the layer
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name = node.path.rpartition("/")[2]

    @property
    def output(self) -> DataView:
        """Return the template of the output."""
        return DataView(self.node.output, name=self.name)

    @property
    def sources(self) -> list[PlannedLayerView]:
        """Return views of the sources."""
        return [type(self)(node) for node in self.node.sources]

    @property
    def layer_class(self) -> str:
        """Return the class, as in the config."""
        return self.node.layer.class_name

    @property
    def search_choices(self) -> Any:
        """Return None: a search has no scores while it is planned."""
        return None

    def get_absolute_name(self) -> str:
        """Return the path in the whole network."""
        return self.node.path

    def get_absolute_name_scope_prefix(self) -> str:
        """Return the scope of the parameters, with a slash at the end."""
        return self.node.scope + "/" if self.node.scope else ""

    get_base_absolute_name_scope_prefix = get_absolute_name_scope_prefix

    def __getattr__(self, name: str) -> Any:
        """Return an option of the layer; those that name layers are views."""
        infos = {} if name.startswith("__") else declared_options(type(self.node.layer))
        if name not in infos:
            raise AttributeError(
                "layer %r (class %r) has no attribute %r here. %s"
                % (self.node.path, self.node.layer.class_name, name, did_you_mean(name, [*infos, *dir(type(self))]))
            )
        return map_values(getattr(self.node.layer, infos[name].attribute), Node, self.of)

    def of(self, node: Node) -> Any:
        """Return the view of another layer."""
        return type(self)(node)


class LayerView(PlannedLayerView):
    """``self`` in user code.

    :param ctx: of the layer that the code is part of
    :param node: the layer
    """

    def __init__(self, ctx: EmitContext, node: Node) -> None:
        super().__init__(node)
        self._ctx = ctx
        self.network = NetworkView(ctx, node.path.rpartition("/")[0], self.of)

    def of(self, node: Node) -> LayerView:
        """Return the view of another layer."""
        return LayerView(self._ctx, node)

    @property
    def output(self) -> DataView:
        """Return the value of the layer; of the layer being computed only the template is known."""
        known = self.node in self._ctx.lowering.values.outputs
        return DataView(self.node.output, self._ctx.value(self.node) if known else None, self._ctx, self.name)

    @property
    def sources(self) -> list[Any]:
        """Return views of the sources."""
        return [self.of(node) for node in self.node.sources]

    @property
    def params(self) -> Mapping[str, Any]:
        """Return the variables of the parameters by name; of one with an adapter the sum, which is a tensor."""
        specs = self.node.params.items()
        return {name: self._ctx.readable(p) for name, p in specs if isinstance(p, ParamSpec)}

    @property
    def output_before_activation(self) -> Optional[OutputWithActivation]:
        """Return the values before and after the activation; None if the layer has none."""
        before = self._ctx.aux(self.node, PRE_ACTIVATION)
        if before is None:
            return None
        return OutputWithActivation(before.values, before.activation, self.output.placeholder)

    @property
    def output_loss(self) -> Any:
        """Return the loss [batch] that the layer computes along with its output, or None."""
        return self._ctx.aux(self.node, OUTPUT_LOSS)

    @property
    def search_choices(self) -> Optional[SearchChoices]:
        """Return the scores of the hypotheses; None without a search."""
        hyps, beam = self._ctx.lowering.search.hypotheses, self.node.output.beam
        if hyps is not None:
            return SearchChoices(hyps.scores)
        scores = self._ctx.lowering.search.beam_scores
        return None if beam is None or beam.of not in scores else SearchChoices(scores[beam.of])

    def get_batch_dim(self) -> Any:
        """Return the number of sequences, times the hypotheses in a loop that searches."""
        return self._ctx.lowering.dims.batch_size

    def get_last_hidden_state(self, key: Any) -> Any:
        """Return the state of a recurrent layer after the last frame; in the step of a loop, after this step.

        :param key: of the tensor, e.g. "h"; "*" or None: all of them, joined in the feature axis
        :raises ConfigError: the layer has no state, or no such tensor, or it is the one of a loop
        """
        state, found = hidden_state_of(self.node), None
        if state is not None:
            found = self._ctx.aux(self.node, HIDDEN_STATE) or self._ctx.aux(recurrent_node(self.node), HIDDEN_STATE)
        if state is None or found is None:
            raise CodeError(
                "Layer %r: get_last_hidden_state(%r) of layer %r is not available to code. Add a layer {'class': "
                "'get_last_hidden_state', 'from': %r, 'n_out': ...} to 'from', and take it by source(i)."
                % (self._ctx.node.path, key, self.node.path, self.name)
            )
        if key in (None, "*"):
            return found[0] if len(found) == 1 else tf.concat(found, axis=state.feature_axis)
        if key not in state.keys:
            raise CodeError(
                "Layer %r: the hidden state of layer %r has no tensor %r. %s"
                % (self._ctx.node.path, self.node.path, key, did_you_mean(str(key), [*state.keys, "*"]))
            )
        return found[state.keys.index(key)]


class SearchChoices:
    """The hypotheses of a search, in user code.

    :param beam_scores: [batch, beam]
    """

    def __init__(self, beam_scores: Any) -> None:
        self.beam_scores = beam_scores

    @property
    def beam_size(self) -> Any:
        """Return the number of hypotheses per sequence."""
        return self.beam_scores.shape[1]


class OutputWithActivation:
    """``x``, the values before an activation, and ``y``, those after it.

    :param act_func: name or function of the activation, or None
    :param y: the values after the activation, if these are known
    """

    def __init__(self, x: Any, act_func: Any = None, y: Optional[Any] = None) -> None:
        self.x = x
        self.act_func = act_func
        self.y = (get_activation(act_func)(x) if act_func else x) if y is None else y

    def is_softmax_act_func(self) -> bool:
        """Return whether the activation is a softmax."""
        return self.act_func == "softmax" or self.act_func is tf.nn.softmax
