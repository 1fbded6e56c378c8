"""A network with its matrices stored as smaller numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config.derived import derived


def quantized(net: Network, quantize: Mapping[str, Any]) -> Network:
    """Return a network with the parameters of another one, stored by the setting ``quantize``.

    :param quantize: options of the setting
    :raises ConfigError: they are wrong
    :raises DataError: a parameter has numbers that are not finite
    """
    config = derived(net.config, {"quantize": dict(quantize)})
    made = Network(plan_from_config(config, train=net.train, search=net.search), config, seed=net.seed)
    made.set_param_values(net.get_param_values())
    made.global_step.assign(net.global_step)
    return made
