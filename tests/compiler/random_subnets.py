"""Random networks whose subnetworks use layers inside of each other, without a cycle between the layers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Container, Iterator
from typing import Any


@dataclasses.dataclass
class Net:
    """A network: its layers, and the networks inside, by name. The path is "" at the top."""

    path: str
    layers: list[str]
    nets: list[Net]

    def all_nets(self) -> Iterator[Net]:
        """Yield this network and all inside of it."""
        yield self
        for net in self.nets:
            yield from net.all_nets()


def random_subnets(seed: int) -> tuple[dict[str, Any], dict[str, tuple[float, float]], list[str]]:
    """Return a network dict; the factor and the summand of the input in the value of each layer; the result layers."""
    rng = random.Random(seed)
    top = _random_net(rng, "", 0)
    places = [(net, name) for net in top.all_nets() for name in net.layers]
    rng.shuffle(places)
    places.remove((top, "output"))
    places.append((top, "output"))
    position = {_join(net.path, name): i for i, (net, name) in enumerate(places)}
    inputs = {net.path: _random_input(rng, net, position) for net in top.all_nets() if net is not top}
    values: dict[str, tuple[float, float]] = {}
    dicts: dict[str, dict[str, Any]] = {"": {}}
    for net in top.all_nets():
        for inner in net.nets:
            dicts[inner.path] = {}
    results: dict[str, list[str]] = {net.path: [] for net in top.all_nets()}
    needs: dict[str, list[str]] = {}
    wanted: set[str] = set()
    for net, name in places:
        path = _join(net.path, name)
        known = list(values)
        sources = rng.sample(known, min(len(known), rng.choice([1, 1, 2, 3])))
        refs = [_reference(net.path, _named(rng, source, inputs, values)) for source in sources]
        parts = [values[source] for source in sources]
        given = inputs.get(net.path)
        if net is top or (given and position.get(given, -1) < position[path]):
            refs.append("data")
            parts.append((1.0, 0.0) if net is top or given == "data" else values[given or ""])
        elif not refs:
            refs.append("base:" * (net.path.count("/") + 1) + "data")
            parts.append((1.0, 0.0))
        factor = rng.choice([1, 2, 3])
        text = " + ".join("source(%d)" % i for i in range(len(refs)))
        layer: dict[str, Any] = {"class": "eval", "from": refs, "eval": "(%s) / %d + %d" % (text, len(refs), factor)}
        values[path] = (
            sum(a for a, _ in parts) / len(parts),
            sum(b for _, b in parts) / len(parts) + factor,
        )
        if rng.random() < 0.25:
            layer["is_output_layer"] = True
        elif rng.random() < 0.15:
            layer["loss"] = "as_is"
        if len(layer) > 3 or path == "output":
            wanted.add(path)
        needs[path] = sources + ([given] if given and given != "data" else [])
        if len(layer) > 3 or name == "output":
            results[net.path].append(path)
        dicts[net.path][name] = layer
    _assemble(rng, top, dicts, inputs)
    named = [path for path in _reached(results, needs) if path in wanted]
    return dicts[""], values, named


def _reached(results: dict[str, list[str]], needs: dict[str, list[str]]) -> list[str]:
    """Return the layers that are planned: of a network of which a layer is needed, all that are results.

    :param results: by path of a network: its output, and its layers that are results
    :param needs: by path of a layer: the layers that it needs
    """
    found: dict[str, None] = {}
    todo = list(results[""])
    while todo:
        path = todo.pop()
        if path not in found:
            found[path] = None
            parts = path.split("/")[:-1]
            todo += needs[path]
            todo += [p for i in range(len(parts)) for p in results["/".join(parts[: i + 1])]]
    return list(found)


def _random_net(rng: random.Random, path: str, depth: int) -> Net:
    names = ["x%d" % i for i in range(rng.randint(0 if depth else 1, 3))] + ["output"]
    count = rng.randint(2, 5) if not depth else rng.choice([0, 0, 1, 2]) if depth < 3 else 0
    return Net(path, names, [_random_net(rng, _join(path, "s%d" % i), depth + 1) for i in range(count)])


def _random_input(rng: random.Random, net: Net, position: dict[str, int]) -> Any:
    """Return the layer that is the source of a subnetwork, "data", or None for a network without one."""
    kind = rng.random()
    if kind < 0.5:
        return None
    around = net.path.rpartition("/")[0]
    beside = [p for p in position if p.rpartition("/")[0] == around and p != "output" and not p.endswith("/output")]
    return rng.choice(beside) if beside and kind < 0.85 else None if around else "data"


def _named(rng: random.Random, path: str, inputs: dict[str, Any], known: Container[str]) -> str:
    """Return a layer, or the network of which it is the output if nothing of that one needs to be planned before."""
    net, _, name = path.rpartition("/")
    while net and name == "output" and inputs[net] in (None, "data", *known) and rng.random() < 0.6:
        path, (net, _, name) = net, net.rpartition("/")
    return path


def _reference(here: str, path: str) -> str:
    """Return the name of a layer as seen from within a network."""
    ours, theirs = here.split("/") if here else [], path.split("/")
    common = 0
    while common < min(len(ours), len(theirs) - 1) and ours[common] == theirs[common]:
        common += 1
    return "base:" * (len(ours) - common) + "/".join(theirs[common:])


def _assemble(rng: random.Random, net: Net, dicts: dict[str, dict[str, Any]], inputs: dict[str, Any]) -> None:
    """Put the dicts of the networks inside into that of a network, all in random order."""
    for inner in net.nets:
        _assemble(rng, inner, dicts, inputs)
        given = inputs[inner.path]
        source = [] if given is None else [given.rpartition("/")[2]]
        layer = {"class": "subnetwork", "from": source, "subnetwork": dicts[inner.path]}
        dicts[net.path][inner.path.rpartition("/")[2]] = layer
    items = list(dicts[net.path].items())
    rng.shuffle(items)
    dicts[net.path].clear()
    dicts[net.path].update(items)


def _join(path: str, name: str) -> str:
    return "%s/%s" % (path, name) if path else name
