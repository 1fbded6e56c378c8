"""Changes of the network of a config before it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, did_you_mean
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options, with_changed_layers

Change = Callable[[dict[str, Any]], dict[str, Any]]


def change_networks(config: Config, change: Change) -> None:
    """Change the network of a config, or what its function ``get_network`` returns."""
    settings = NetworkSettings(config)
    given = settings.get_network
    if given is not None:

        def changed(*args: Any, **options: Any) -> Any:
            return change(given(*args, **options))

        config.update({"get_network": changed})
    elif isinstance(settings.network, Mapping):
        config.update({"network": change(dict(settings.network))})


def with_outputs_of_loop(network: Mapping[str, Any], loop: str, names: list[str]) -> dict[str, Any]:
    """Return a network in which the values of some layers of a loop are kept for all steps.

    :param loop: path of the loop
    :param names: layers in it
    :raises ConfigError: there is no such loop or layer
    """
    first, _, rest = loop.partition("/")
    layer = network.get(first)
    if not isinstance(layer, Mapping):
        raise CommandError("there is no layer %r. %s" % (loop, did_you_mean(first, network)))
    for option in network_options(LAYERS.find(layer.get("class"))):
        inner = layer.get(option)
        if isinstance(inner, Mapping) and is_network(inner):
            kept = with_outputs_of_loop(inner, rest, names) if rest else _kept(inner, loop, names)
            return {**network, first: {**layer, option: kept}}
    raise CommandError("layer %r has no network, so it is no loop with layers" % loop)


def _kept(network: Mapping[str, Any], loop: str, names: list[str]) -> dict[str, Any]:
    result = dict(network)
    for name in names:
        if not isinstance(network.get(name), Mapping):
            raise CommandError("layer %r of the loop %r is not there. %s" % (name, loop, did_you_mean(name, network)))
        result[name] = {**network[name], "is_output_layer": True}
    return result


def with_dropout(network: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Return a network with another rate in all layers that have the option ``dropout``, also in inner networks."""

    def change(layer: dict[str, Any], _: Optional[type[Any]]) -> None:
        if "dropout" in layer:
            layer["dropout"] = rate

    return with_changed_layers(network, change)
