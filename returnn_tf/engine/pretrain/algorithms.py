"""Pretraining steps derived from the network of the config: "from_output" and "from_input".

Both consider only top-level layers and their ``from``. Layers named by an option other than ``from`` are kept unchanged
while some layer needs them.
"""

from __future__ import annotations

from typing import Any

from returnn_tf.config import ConfigError
from returnn_tf.config.epoch_value import copied

NetDict = dict[str, Any]


def steps_from_output(network: NetDict) -> list[NetDict]:
    """Return network dicts from small to full: each lacks the top hidden layers of the next one."""
    steps = [copied(network)]
    while True:
        smaller = _without_layers_below(steps[0], output_layers(network))
        if smaller is None or _names(smaller) == _names(steps[0]):
            return steps
        steps.insert(0, smaller)


def steps_from_input(network: NetDict) -> list[NetDict]:
    """Return network dicts from small to full: step i has the hidden layers up to depth i + 1 above the data."""
    outputs = output_layers(network)
    depth = _depths(network, outputs)
    steps: list[NetDict] = []
    for limit in range(1, max(depth.values(), default=0) + 1):
        step = _up_to_depth(network, outputs, depth, limit)
        if not steps or _names(step) != _names(steps[-1]):
            steps.append(step)
    return steps[:-1] + [copied(network)] if steps else [copied(network)]


def output_layers(network: NetDict) -> list[str]:
    """Return the top-level layers which are outputs or have a loss: "output", and those trained on."""
    found = [
        name
        for name, layer in network.items()
        if not name.startswith("#")
        and isinstance(layer, dict)
        and (name == "output" or layer.get("loss") is not None or layer.get("is_output_layer"))
    ]
    if not found:
        raise ConfigError("The network has no layer 'output' and none with a loss, so pretraining finds no output.")
    return found


def sources_of(network: NetDict, name: str) -> list[str]:
    """Return the sources of a layer, from its option ``from``."""
    given = network[name].get("from", "data")
    if isinstance(given, str):
        return [given]
    return [source if isinstance(source, str) else source[0] for source in given or []]


def _without_layers_below(network: NetDict, outputs: list[str]) -> Any:
    """Connect the outputs to the sources of their sources; None if only the lowest layers are left."""
    result = copied(network)
    changed = False
    for name in outputs:
        sources: list[str] = []
        for source in sources_of(network, name):
            if source not in network or source in outputs or not _hidden_below(network, source):
                sources.append(source)  # data, or one of the lowest hidden layers: keep it
                continue
            sources += [below for below in sources_of(network, source) if below in network]
            changed = True
        result[name]["from"] = list(dict.fromkeys(sources))
    return _needed(result, outputs) if changed else None


def _hidden_below(network: NetDict, name: str) -> bool:
    return any(source in network for source in sources_of(network, name))


def _depths(network: NetDict, outputs: list[str]) -> dict[str, int]:
    """Return the longest path from the data, in layers, for all hidden layers."""
    depth: dict[str, int] = {}

    def visit(name: str, above: set[str]) -> int:
        if name not in network or name in above:
            return 0
        if name not in depth:
            depth[name] = 1 + max([visit(source, above | {name}) for source in sources_of(network, name)] or [0])
        return depth[name]

    for output in outputs:
        for source in sources_of(network, output):
            if source not in outputs:
                visit(source, {output})
    return depth


def _up_to_depth(network: NetDict, outputs: list[str], depth: dict[str, int], limit: int) -> NetDict:
    result = copied(network)
    for name in outputs:
        sources: list[str] = []
        todo = sources_of(network, name)
        while todo:
            source = todo.pop(0)
            if source in depth and depth[source] > limit:
                todo = sources_of(network, source) + todo
            else:
                sources.append(source)
        hidden = [source for source in sources if source in network]
        result[name]["from"] = list(dict.fromkeys(hidden or sources))
    return _needed(result, outputs)


def _needed(network: NetDict, outputs: list[str]) -> NetDict:
    """Return the layers which the outputs need, including those named in any option of a needed layer."""
    needed: set[str] = set()
    todo = list(outputs)
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


def _names(network: NetDict) -> set[str]:
    return {name for name in network if not name.startswith("#")}
