"""Layers that a program asks for: they become outputs of the network, as by ``is_output_layer``. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.epoch_value import network_of
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options


def with_outputs(config: Config, paths: Sequence[str]) -> Config:
    """Return the config with some layers of its network as outputs: they are planned even if nothing needs them.

    Names that are not in the network are left to `Plan.find_nodes`, which reports them.

    :param paths: of layers, also inside subnetworks and loops: "encoder/lstm0"
    """
    network = network_of(config)
    if not paths or not isinstance(network, Mapping):
        return config
    for path in paths:
        network = _marked(network, path.split("/"))
    return derived(config, {}, hidden={"network": network})


def _marked(network: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return a network dict in which the layer is an output."""
    name, inner = path[0], path[1:]
    layer = network.get(name)
    if not isinstance(layer, Mapping):
        return network
    changed = dict(layer)
    if not inner:
        changed["is_output_layer"] = True
    for option in network_options(LAYERS.find(layer.get("class"))) if inner else ():
        nested = layer.get(option)
        if isinstance(nested, Mapping) and is_network(nested):
            changed[option] = _marked(nested, inner)
    return {**network, name: changed}
