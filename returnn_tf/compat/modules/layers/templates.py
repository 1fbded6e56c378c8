"""The template of a layer of ours whose sources are templates, for `get_out_data_from_opts` outside of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from returnn_tf.compat.modules.behavior_version import BehaviorVersion
from returnn_tf.compat.modules.layers.layer_base import LayerBase
from returnn_tf.compat.modules.tensors import float_dtype_in_use
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.names_of_dims import axes_of_lengths
from returnn_tf.compiler.plan_layer import plan_layer
from returnn_tf.config.option_values import map_values
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer import Node
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Data, Dim


def template_of_layer(
    name: str, options: Mapping[str, Any], sources: Sequence[tuple[Any, tuple[Any, ...]]], network: Any
) -> DataView:
    """Return the template of a layer.

    Dims that the front end declared, and that the layer defines, have this definition everywhere from now on.

    :param options: the layer dict without ``from``, with layers instead of their names
    :param sources: these layers, each with what follows its name in ``from``
    :param network: the network of templates that they are in, or None
    :raises ConfigError: with the name of the layer, what is wrong and how to fix it
    """
    names: dict[int, str] = {}
    given: dict[str, Data] = {}
    states: dict[str, HiddenState] = {}
    layers = {} if network is None else dict(network.layers)

    def give(key: str, view: DataView) -> None:
        given[key] = view.template
        if view.hidden_state is not None:
            states[key] = view.hidden_state

    for key, layer in layers.items():
        if key != name and ":" not in key:
            give(key, layer.output)

    def name_of(layer: Any) -> str:
        if id(layer) not in names:
            names[id(layer)] = next((key for key in given if layers.get(key) is layer), "source %d" % len(names))
            give(names[id(layer)], layer.output)
        return names[id(layer)]

    # A layer may name itself only if it is its own source, which no template can have.
    plain = map_values(dict(options), LayerBase, name_of)
    plain["from"] = [(name_of(source), *others) if others else name_of(source) for source, others in sources]
    keys = {} if network is None else {key: view.template for key, view in network.extern_data.data.items()}
    planned = plan_layer(
        name,
        plain,
        given,
        states,
        keys,
        semantics=_semantics(network),
        train=network is not None and network.train_flag is not False,
        in_step=network is not None and network.is_inside_rec_layer(),
    )

    def view_of(node: Node) -> DataView:
        for declared, definition in planned.dims.definitions().items():
            declared.declare_same_as(definition)
        output = node.output.without_axes(node.output.loop_axes)
        view = DataView(_by_declared_dims(output, plain, given), None, None, name)
        view.hidden_state = hidden_state_of(node)
        for axis in view.get_dynamic_axes():
            dim: Any = view.dim_tags[axis]
            if dim.dyn_size_ext is None:
                dim.dyn_size_ext = DataView(Data(axes_of_lengths(dim), "int32"), name="%s_size" % dim.description)
        view.batch = next((source.output.batch for source, _ in sources if source.output.batch is not None), None)
        view.control_flow_ctx = None if network is None else network.control_flow_ctx
        return view

    view = view_of(planned.node)
    view.part = lambda part: view_of(planned.part(part))
    return view


def _semantics(network: Any) -> Semantics:
    """Return the settings of the network: the behavior version that code set counts before that of the config."""
    version = BehaviorVersion.get_if_set()
    if version is None:
        version = BehaviorVersion.get() if network is None else NetworkSettings(network.get_config()).behavior_version
    return Semantics(float_dtype_in_use(), None, version)


def _by_declared_dims(template: Data, options: Any, given: Mapping[str, Data]) -> Data:
    """Return a template with the dims that the front end has, where they were declared to be those of the template."""
    found: dict[Dim, Dim] = {}

    def note(dim: Dim) -> Dim:
        if dim.same_as is not None:
            found.setdefault(dim.declared(), dim)
        return dim

    map_values(options, Dim, note)
    for data in given.values():
        data.map_dims(note)
    own = {dim for data in given.values() for dim in data.dims}
    return template.map_dims(lambda dim: dim if dim in own else found.get(dim, dim))
