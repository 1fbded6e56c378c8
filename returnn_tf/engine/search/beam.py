"""The command-line setting ``beam_size``, which changes all choices of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.layers.shared.nested import with_changed_layers
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

    def change(layer: dict[str, Any], cls: Optional[type[Any]]) -> None:
        if cls is not None and cls.beam_size_option:
            layer[cls.beam_size_option] = size

    return derived(config, {}, hidden={"network": with_changed_layers(network, change)})
