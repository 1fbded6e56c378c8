"""Notes on a planned network: what is probably not meant, and mistakes in layers that nothing needs.

These are no errors: layers that nothing needs are not planned, and the others can be computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Optional

from returnn_tf.compiler.planning.parse import LayerSpec, describe_place, has_loss
from returnn_tf.config import did_you_mean
from returnn_tf.graph.layer import Node

_MOST_NAMED = 3  # layers of which the same is said
_LEFT_OUT = "(Nothing needs this layer, so it is left out.)"


def unneeded_mistakes(
    networks: Iterable[Mapping[str, LayerSpec]], planned: Collection[str], inputs: Collection[str]
) -> list[str]:
    """Return one text for each mistake in a layer that was not planned.

    :param networks: the parsed layers of all networks, nested ones included
    :param planned: the paths of all planned layers
    :param inputs: the data keys
    """
    networks = list(networks)
    referenced = {_first_name(ref) for specs in networks for spec in specs.values() for ref in spec.references()}
    notes: dict[str, None] = {}
    for specs in networks:
        for spec in specs.values():
            if spec.path not in planned:
                notes.update(dict.fromkeys(_mistakes(spec, specs, inputs)))
                if spec.name not in referenced and _lacks_loss(spec):
                    notes["%s: it has a target, but no loss. %s" % (spec.where, _LEFT_OUT)] = None
    return list(notes)


def unknown_targets(networks: Iterable[Mapping[str, LayerSpec]], inputs: Collection[str], default: str) -> list[str]:
    """Return one text for each target without a loss, which nothing looks up, that is neither data key nor layer.

    :param networks: the parsed layers of all networks, nested ones included
    :param inputs: the data keys
    :param default: the setting ``target``; "" if it is not set
    """
    networks = list(networks)
    known = {name for specs in networks for name in specs} | set(inputs)
    known |= {str(spec.options.get("register_as_extern_data")) for specs in networks for spec in specs.values()}
    notes: dict[str, None] = {}
    for spec in (spec for specs in networks for spec in specs.values() if not has_loss(spec, False)):
        target = spec.options.get("target")
        for name in [target] if isinstance(target, str) else target if isinstance(target, (list, tuple)) else ():
            if isinstance(name, str) and ":" not in name and name.split("/")[0] not in known:
                hint = did_you_mean(name, inputs)
                notes["%s: target %r is neither a layer nor a data key. %s" % (spec.where, name, hint)] = None
    if default and default not in known:
        notes["config key 'target': there is no data key %r. %s" % (default, did_you_mean(default, inputs))] = None
    return list(notes)


def remarks(nodes: Iterable[Node]) -> list[str]:
    """Return one text for each thing that planned layers probably do other than is meant; it names all of these."""
    found: dict[str, dict[str, str]] = {}
    for node in nodes:
        text = node.layer.remark()
        if text:
            found.setdefault(text, {})[node.path] = node.layer.class_name
    return ["%s: %s" % (_described(layers), text) for text, layers in found.items()]


def _described(layers: Mapping[str, str]) -> str:
    """Return the subject of a text about some layers: their names.

    :param layers: path -> class
    """
    if len(layers) == 1:
        return describe_place(*next(iter(layers.items())))
    shown = ", ".join(map(repr, list(layers)[:_MOST_NAMED]))
    return "Layers %s%s" % (shown, " and %d others" % (len(layers) - _MOST_NAMED) if len(layers) > _MOST_NAMED else "")


def _lacks_loss(spec: LayerSpec) -> bool:
    """Return whether a layer has a target that only a loss could use."""
    given = spec.options
    elsewhere = given.get("only_on_search") or given.get("register_as_extern_data")
    return spec.cls.is_for_loss and bool(given.get("target")) and "loss" not in given and not elsewhere


def _first_name(ref: str) -> str:
    """Return the name of the layer in a reference such as ``prev:base:encoder/out``, without what surrounds it."""
    return ref.rpartition(":")[2].split("/")[0]


def _mistakes(spec: LayerSpec, specs: Mapping[str, LayerSpec], inputs: Collection[str]) -> Iterator[str]:
    if spec.error is not None:
        yield "%s\n  %s" % (spec.error, _LEFT_OUT)
    for ref in spec.references():
        name = _local_name(ref)
        if name is not None and name not in inputs and not _has(specs, name):
            yield "%s: there is no layer %r. %s" % (spec.where, ref, _LEFT_OUT)


def _local_name(ref: str) -> Optional[str]:
    """Return the name of a layer of the same network; None for data keys, outer layers and other special names."""
    if ref.startswith("prev:"):
        return ref[len("prev:") :]
    return None if ":" in ref else ref


def _has(specs: Mapping[str, LayerSpec], name: str) -> bool:
    """Return whether the network has the layer, or one that the name may be a part of."""
    parts = name.split("/")
    return any("/".join(parts[:i]) in specs for i in range(1, len(parts) + 1))
