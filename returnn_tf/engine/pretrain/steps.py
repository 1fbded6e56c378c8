"""The steps of pretraining: a network dict and a number of epochs for each.

The algorithms "from_output" and "from_input" consider only top-level layers and their ``from``, between input layers
and output layers. Layers named by an option other than ``from`` are kept unchanged while some layer needs them, and so
are further layers with a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from returnn_tf.config.epoch_value import copied, same_value
from returnn_tf.config.errors import ConfigError, PretrainError, did_you_mean
from returnn_tf.config.option_types import shown_with_kind
from returnn_tf.engine.pretrain.options import PretrainOptions, epochs_of_steps

_MAX_STEPS = 1000
NetDict = dict[str, Any]


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
            raise PretrainError("%s: %s" % (where, exc)) from None
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
            raise PretrainError(
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
        raise PretrainError(text) from exc


def _checked(network: Any, what: str) -> dict[str, Any]:
    if not isinstance(network, dict):
        raise PretrainError("%s: expected a network dict or None, got %s." % (what, shown_with_kind(network)))
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


@dataclass(frozen=True)
class Ends:
    """The layers between which an algorithm works.

    :param outputs: layers whose sources it changes
    :param inputs: data keys and layers below which it never looks
    """

    outputs: Sequence[str] = ("output",)
    inputs: Sequence[str] = ("data",)

    def check(self, network: NetDict) -> None:
        """Check that the outputs exist.

        :raises ConfigError: one does not
        """
        for name in self.outputs:
            if name not in network:
                hint = did_you_mean(name, [key for key in network if not str(key).startswith("#")])
                raise PretrainError("output_layers: the network has no layer %r. %s" % (name, hint))

    def is_hidden(self, network: NetDict, name: str) -> bool:
        """Return whether a name is a layer that an algorithm may leave out."""
        return name in network and name not in self.inputs


def steps_from_output(network: NetDict, ends: Ends) -> list[NetDict]:
    """Return network dicts from small to full: each lacks the top hidden layers of the next one."""
    ends.check(network)
    steps = [copied(network)]
    while len(steps) <= len(network):  # sources that form a cycle have no lowest layer
        smaller = _without_layers_below(steps[0], ends)
        if smaller is None or _shape_of(smaller, ends) == _shape_of(steps[0], ends):
            break
        steps.insert(0, smaller)
    return steps


def steps_from_input(network: NetDict, ends: Ends) -> list[NetDict]:
    """Return network dicts from small to full: step i has the hidden layers up to depth i + 1 above the inputs."""
    ends.check(network)
    depth = _depths(network, ends)
    steps: list[NetDict] = []
    for limit in range(1, max(depth.values(), default=0) + 1):
        step = _up_to_depth(network, ends, depth, limit)
        if not steps or _shape_of(step, ends) != _shape_of(steps[-1], ends):
            steps.append(step)
    return steps[:-1] + [copied(network)]


def kept_layers(network: NetDict, outputs: Sequence[str]) -> list[str]:
    """Return the layers which every step has: the outputs, and further top-level ones which are trained or written."""
    further = [
        name
        for name, layer in network.items()
        if not str(name).startswith("#")
        and isinstance(layer, dict)
        and (name == "output" or layer.get("loss") is not None or layer.get("is_output_layer"))
    ]
    return list(dict.fromkeys([*outputs, *further]))


def sources_of(network: NetDict, name: str) -> list[str]:
    """Return the sources of a layer, from its option ``from``.

    :raises ConfigError: the layer is no dict, or its sources are no names
    """
    layer = network[name]
    if not isinstance(layer, dict):
        raise PretrainError("Layer %r must be a dict of options, not %r." % (name, layer))
    given = layer.get("from", "data")
    if given is None or isinstance(given, str):
        return [] if given is None else [given]
    sources = list(given) if isinstance(given, (list, tuple)) else [given]
    names = [source[0] if isinstance(source, (list, tuple)) and source else source for source in sources]
    if not all(isinstance(source, str) for source in names):
        raise PretrainError("Layer %r: 'from' must be the name of a layer or a list of names, not %r." % (name, given))
    return names


def _without_layers_below(network: NetDict, ends: Ends) -> Any:
    """Connect the outputs to the sources of their sources; None if only the lowest layers are left."""
    result = copied(network)
    changed = False
    for name in ends.outputs:
        sources: list[str] = []
        for source in sources_of(network, name):
            hidden = ends.is_hidden(network, source) and source not in ends.outputs
            if not hidden or not _hidden_below(network, source, ends):
                sources.append(source)  # an input, or one of the lowest hidden layers: keep it
                continue
            sources += [below for below in sources_of(network, source) if ends.is_hidden(network, below)]
            changed = True
        if sources != sources_of(network, name):
            result[name]["from"] = list(dict.fromkeys(sources))
    return _needed(result, ends) if changed else None


def _hidden_below(network: NetDict, name: str, ends: Ends) -> bool:
    return any(ends.is_hidden(network, source) for source in sources_of(network, name))


def _depths(network: NetDict, ends: Ends) -> dict[str, int]:
    """Return the longest path from the inputs, in layers, for all hidden layers."""
    depth: dict[str, int] = {}

    def visit(name: str, above: set[str]) -> int:
        if not ends.is_hidden(network, name) or name in above:
            return 0
        if name not in depth:
            depth[name] = 1 + max([visit(source, above | {name}) for source in sources_of(network, name)] or [0])
        return depth[name]

    for output in ends.outputs:
        for source in sources_of(network, output):
            if source not in ends.outputs:
                visit(source, {output})
    return depth


def _up_to_depth(network: NetDict, ends: Ends, depth: dict[str, int], limit: int) -> NetDict:
    result = copied(network)
    for name in ends.outputs:
        sources: list[str] = []
        todo = sources_of(network, name)
        while todo:
            source = todo.pop(0)
            if source in depth and depth[source] > limit:
                todo = sources_of(network, source) + todo
            else:
                sources.append(source)
        hidden = [source for source in sources if ends.is_hidden(network, source)]
        if sources != sources_of(network, name):
            result[name]["from"] = list(dict.fromkeys(hidden or sources))
    return _needed(result, ends)


def _needed(network: NetDict, ends: Ends) -> NetDict:
    """Return the layers which the kept ones need, including those named in any option of a needed layer."""
    needed: set[str] = set()
    todo = kept_layers(network, ends.outputs)
    while todo:
        name = todo.pop()
        if name in needed or name not in network:
            continue
        needed.add(name)
        todo += _strings(network[name])
    return {name: layer for name, layer in network.items() if name in needed or name.startswith("#")}


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        parts = [value] + value.split(":")
        return parts + [part.split("/")[0] for part in parts]
    if isinstance(value, dict):
        return [text for key, item in value.items() if key != "class" for text in _strings(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _strings(item)]
    return []


def _shape_of(network: NetDict, ends: Ends) -> tuple[set[str], list[list[str]]]:
    """Return the parts that the algorithms change: names of the layers, and sources of the outputs."""
    return {name for name in network if not name.startswith("#")}, [sources_of(network, name) for name in ends.outputs]
