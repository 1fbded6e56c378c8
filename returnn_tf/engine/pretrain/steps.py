"""The steps of pretraining: a network dict and a number of epochs for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from returnn_tf.config import ConfigError
from returnn_tf.config.epoch_value import copied, same_value
from returnn_tf.config.type_words import shown_with_kind
from returnn_tf.engine.pretrain.algorithms import Ends, kept_layers, steps_from_input, steps_from_output
from returnn_tf.engine.pretrain.options import PretrainOptions, epochs_of_steps

_MAX_STEPS = 1000


@dataclass(frozen=True)
class PretrainStep:
    """One step: index passed to the construction function, network dict, and number of epochs."""

    index: int
    network: dict[str, Any]
    epochs: int


def make_steps(network: dict[str, Any], options: PretrainOptions, where: str) -> list[PretrainStep]:
    """Return all steps with at least one epoch. The last one is the network of the config.

    :param network: of the config
    :param where: prefix of error messages
    :raises ConfigError: a step is not a network, or wrong numbers of epochs
    """
    networks = _networks(network, options, where)
    counts = epochs_of_steps(options.repetitions, [net.get("#repetition") for net in networks], where)
    if options.greedy:
        networks = _greedy(networks, options.output_layers)
    return [PretrainStep(i, net, count) for i, (net, count) in enumerate(zip(networks, counts)) if count]


def _networks(network: dict[str, Any], options: PretrainOptions, where: str) -> list[dict[str, Any]]:
    algo = options.construction_algo
    if algo == "no_network_modifications":
        return [copied(network)]
    if isinstance(algo, str):
        steps = {"from_output": steps_from_output, "from_input": steps_from_input}[algo]
        try:
            return steps(network, Ends(options.output_layers, options.input_layers))
        except ConfigError as exc:
            raise ConfigError("%s: %s" % (where, exc)) from None
    if callable(algo):
        return [*_from_function(algo, network, where), copied(network)]
    return [*(_checked(net, "%s: construction_algo[%d]" % (where, i)) for i, net in enumerate(algo)), copied(network)]


def _from_function(algo: Any, network: dict[str, Any], where: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        result = _call(algo, len(found), copied(network), where)
        if not result:
            return found
        if len(found) >= _MAX_STEPS:
            raise ConfigError(
                "%s: construction_algo returned %d steps and did not end. Return None after the last."
                % (where, _MAX_STEPS)
            )
        found.append(_checked(result, "%s: construction_algo(%d, ...)" % (where, len(found))))


def _call(algo: Any, idx: int, network: dict[str, Any], where: str) -> Any:
    """Call a construction function.

    :raises ConfigError: it does not take two arguments
    """
    try:
        return algo(idx, network)
    except TypeError as exc:
        if exc.__traceback__ is None or exc.__traceback__.tb_next is not None:
            raise  # within the function
        text = "%s: construction_algo must be a function of two arguments, (idx, net_dict): %s" % (where, exc)
        raise ConfigError(text) from exc


def _checked(network: Any, what: str) -> dict[str, Any]:
    if not isinstance(network, dict):
        raise ConfigError("%s: expected a network dict or None, got %s." % (what, shown_with_kind(network)))
    return network


def _greedy(networks: list[dict[str, Any]], output_layers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps with layers of earlier steps frozen, except for outputs and changed layers."""
    result = networks[:1]
    for before, network in zip(networks, networks[1:]):
        outputs = kept_layers(network, output_layers)
        step = copied(network)
        for name, layer in step.items():
            if name in before and name not in outputs and isinstance(layer, dict) and not name.startswith("#"):
                if not same_value(layer, before[name]):
                    continue  # changed, so it has to be trained
                layer["trainable"] = False
        result.append(step)
    return result
