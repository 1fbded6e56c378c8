"""Layers that a program asks for: they become outputs of the network, as by ``is_output_layer``. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.epoch_value import network_of
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options


class AddedLayer(NamedTuple):
    """A layer that a program adds to a network, for its own use.

    :param path: of the layer, which the network does not have
    :param options: its dict, with names of the network or loop that it is in
    """

    path: str
    options: Mapping[str, Any]


#: The path of a layer, or one to add.
Output = Union[str, AddedLayer]


def with_outputs(config: Config, outputs: Sequence[Output]) -> Config:
    """Return the config with some layers of its network as outputs: they are planned even if nothing needs them.

    Names that are not in the network are left to `Plan.find_nodes`, which reports them.

    :param outputs: paths of layers, also inside subnetworks and loops: "encoder/lstm0"; or layers to add
    """
    network = network_of(config)
    if not outputs or not isinstance(network, Mapping):
        return config
    for output in outputs:
        path, options = output if isinstance(output, AddedLayer) else (output, None)
        network = _marked(network, path.split("/"), options)
    return derived(config, {}, hidden={"network": network})


def _marked(network: Mapping[str, Any], path: Sequence[str], added: Optional[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a network dict in which the layer is an output.

    :param added: the dict of a layer that is not there
    """
    name, inner = path[0], path[1:]
    layer = network.get(name) if inner or added is None else added
    if not isinstance(layer, Mapping):
        return network
    changed = dict(layer)
    if not inner:
        changed["is_output_layer"] = True
    for option in network_options(LAYERS.find(layer.get("class"))) if inner else ():
        nested = layer.get(option)
        if isinstance(nested, Mapping) and is_network(nested):
            changed[option] = _marked(nested, inner, added)
    return {**network, name: changed}
