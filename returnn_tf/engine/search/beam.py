"""The command-line setting ``beam_size``, which changes all choices of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options
from returnn_tf.logging.log import log


def with_beam_size(config: Config) -> Any:
    """Return the config with another beam size in all choices of its network, if ``++beam_size`` is set.

    A value in a config file has no effect here: many configs use the name for some of their choices only.

    :param config: with the network
    :raises ConfigError: it is not a positive number
    """
    size = NetworkSettings(config).beam_size
    if size is None:
        return config
    network = NetworkSettings(config).network
    if not isinstance(network, Mapping):
        return config  # reported as an error of the network
    log.write(3, "beam_size %d for all choices" % size)
    return derived(config, {}, hidden={"network": _changed(network, size)})


def _changed(network: Mapping[str, Any], size: int) -> Any:
    """Return a network dict with the beam size set, including those nested inside layers."""
    return {name: _changed_layer(layer, size) for name, layer in network.items()}


def _changed_layer(layer: Any, size: int) -> Any:
    if not isinstance(layer, Mapping):
        return layer
    result = dict(layer)
    cls = LAYERS.find(layer.get("class"))
    if cls is not None and cls.beam_size_option:
        result[cls.beam_size_option] = size
    for option in network_options(cls):
        inner = layer.get(option)
        if isinstance(inner, Mapping):
            result[option] = _changed(inner, size) if is_network(inner) else _changed_layer(inner, size)
    return result
